package ps_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/ps"
	linked "github.com/tutti-go/tutti/transport/wires"
)

// Rank 0 works, and ranks 1 and 2 serve. Rank 2 is lost. Pushes, pulls and declarations then fail,
// and name the parts that rank 2 had: never zeros.
func TestTheLossOfAServerNamesTheLostParts(t *testing.T) {
	for _, wire := range wires() {
		t.Run(wire, func(t *testing.T) {
			leak.Check(t)
			cause := errors.New("pulled the plug")
			declared := make(chan struct{})
			over := make(chan struct{})
			ended, end := context.WithCancel(context.Background())
			end()
			err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
				if c.Rank() > 0 {
					s, err := ps.NewServer(ctx, c, ps.WithPart(4000))
					if err != nil {
						return err
					}
					defer s.Serve(ended)
					<-declared
					if c.Rank() == 2 {
						c.Abort(cause)
					}
					<-over
					return cause
				}
				cl, err := ps.Connect(ctx, c, ps.WithPart(4000))
				if err != nil {
					return err
				}
				defer cl.Close(ended)
				defer close(over)
				buf := make([]float32, 4000)
				w, err := ps.Declare[float32](ctx, cl, "w", len(buf))
				if err != nil {
					return err
				}
				rows, err := ps.DeclareTable[float32](ctx, cl, "rows", 2, ps.Rows(1000))
				if err != nil {
					return err
				}
				close(declared)
				for err == nil {
					err = w.PushPull(context.Background(), buf, buf)
				}
				// Parts of equal size go to the two servers in turn.
				for what, err := range map[string]error{
					"pushpull": err,
					"pull":     w.Pull(context.Background(), buf),
					"push":     rows.Push(context.Background(), []int64{1}, []float32{1, 2}),
					"set":      w.Set(context.Background(), buf),
				} {
					if !names(err, 2) || !strings.Contains(err.Error(), "; lost parts: 1, 3, 5, 7 of rows; 1, 3 of w; ") {
						t.Errorf("%s: got %v, want a loss of rank 2 that lists its parts", what, err)
					}
				}
				return cause
			}, comm.WithTransportName(wire), comm.WithTransport(linked.All()...))
			if !errors.Is(err, cause) {
				t.Error(err)
			}
		})
	}
}

// Worker 1 serves, too, and its function fails. The calls of worker 0 name the parts that worker 1
// had, and offer Client.Restore only for the case that there is a snapshot.
func TestTheEndOfAWorkerThatServesNamesItsParts(t *testing.T) {
	leak.Check(t)
	wrong := errors.New("out of data")
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		err := ps.Run(ctx, c, ps.Everywhere(), func(ctx context.Context, cl *ps.Client) error {
			w, err := ps.Declare[float32](ctx, cl, "w", 2000)
			buf := make([]float32, 2000)
			if err == nil {
				err = w.PushPull(ctx, buf, buf)
			}
			if err == nil && c.Rank() == 1 {
				return wrong
			}
			for err == nil {
				err = w.PushPull(ctx, buf, buf)
			}
			return err
		}, nil, ps.WithPart(4000))
		if errors.Is(err, wrong) {
			return nil
		}
		return refusal("the call of worker 0", err, fault.Revoked, "rank 1", ": a rank that serves has left early; its parts: 1 of w; if a snapshot was taken, Client.Restore ")
	})
	if err != nil {
		t.Error(err)
	}
}

func TestAnErrorListsPartsAsRanges(t *testing.T) {
	for _, test := range []struct {
		parts []int
		want  string
	}{
		{[]int{3}, "3"},
		{[]int{0, 1, 2, 3, 5, 7, 8}, "0-3, 5, 7-8"},
		{[]int{0, 2, 4, 6, 8, 10, 12, 14, 16, 18}, "0, 2, 4, 6, 8, 10, 12, 14, and 2 more"},
	} {
		if got := ps.Ranges(test.parts); got != test.want {
			t.Errorf("%v: got %q, want %q", test.parts, got, test.want)
		}
	}
}
