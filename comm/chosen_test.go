package comm_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
)

func TestCommTellsWhatWasChosen(t *testing.T) {
	for _, tc := range []struct {
		transport, algorithm, op string
		want                     string // transport to the other rank, algorithm
	}{
		{"", "allreduce:ring", "allreduce", "memory ring"},
		{"tcp", "allreduce:linear,barrier:dissemination", "allreduce", "tcp linear"},
		{"grpc", "", "barrier", "grpc dissemination"},
		{"memory", "", "allsum", "memory "},
	} {
		err := comm.Local(2, func(_ context.Context, c *comm.Comm) error {
			other := 1 - c.Rank()
			if got := c.Transport(other) + " " + c.Algorithm(tc.op, 1000); got != tc.want {
				return fmt.Errorf("got %q, want %q", got, tc.want)
			}
			if got := c.Transport(c.Rank()) + c.Transport(2) + c.Transport(-1); got != "self" {
				return fmt.Errorf("got %q for this rank and none, want self", got)
			}
			return nil
		}, comm.WithTransport(tc.transport), comm.WithAlgorithm(tc.algorithm))
		if err != nil {
			t.Errorf("%s %s: %v", tc.transport, tc.algorithm, err)
		}
	}
}

func TestACallMayNameItsAlgorithm(t *testing.T) {
	for _, tc := range []struct {
		algorithm string
		op        comm.Op
		want      error
	}{
		{"ring", comm.Sum, nil},
		{"pairwise", comm.Sum, nil},
		{"linear", comm.Max, nil},
		{"", comm.Sum, nil},
		{"shared", comm.Sum, fault.Misuse},
		{"quickest", comm.Sum, fault.Misuse},
	} {
		err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
			buf := []int32{int32(c.Rank()), 1, -1, 7}
			err := comm.AllReduceBy(ctx, c, tc.algorithm, buf, tc.op)
			if tc.want != nil {
				if !errors.Is(err, tc.want) {
					return fmt.Errorf("got %v, want %v", err, tc.want)
				}
				return nil
			}
			want := []int32{3, 3, -3, 21}
			if tc.op.ID() == comm.Max.ID() {
				want = []int32{2, 1, -1, 7}
			}
			if err != nil || !slices.Equal(buf, want) {
				return fmt.Errorf("got %v, error %v, want %v", buf, err, want)
			}
			return nil
		}, comm.WithTransport("tcp"))
		if err != nil {
			t.Errorf("%q: %v", tc.algorithm, err)
		}
	}
}

func TestRanksThatNameDifferentAlgorithmsGetMismatch(t *testing.T) {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		err := comm.AllReduceBy(ctx, c, []string{"ring", "pairwise"}[c.Rank()], make([]float32, 1000), comm.Sum)
		if !errors.Is(err, fault.Mismatch) {
			return fmt.Errorf("got %v, want a mismatch", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
