package ps_test

import (
	"context"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/ps"
)

// A tables is a writer of a server's tables. Its methods may be called by any goroutine.
type tables struct {
	mu   sync.Mutex
	list []string
}

func (w *tables) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = append(w.list, string(b))
	return len(b), nil
}

// Worker 0 is two pushes ahead of worker 1 in a bounded tensor, and waits for it in a synchronous one.
func TestStatsAndTheReportShowRatesWaitsAndLag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out tables
		err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
			report := ps.WithReport(10*time.Second, &out)
			if c.Rank() == 2 {
				s, err := ps.NewServer(ctx, c, report)
				if err != nil {
					return err
				}
				// Reason: the sleep ends after the first table, when worker 0 waits. It takes no real time.
				time.Sleep(11 * time.Second)
				st := s.Stats()
				want := []ps.TensorStats{
					{Name: "near", Mode: "bounded(3)", Parts: 1, Keys: 1000, Bytes: 4000, Pushes: 2, Lag: 2},
					{Name: "round", Mode: "synchronous", Parts: 1, Keys: 10, Bytes: 40, Pushes: 1, Pulls: 1, Waiting: 1, Lag: 1},
				}
				if !slices.Equal(st.ByTensor, want) || st.Tensors != 2 || st.Bytes != 4040 || st.Pushes != 3 || st.Pulls != 1 {
					t.Errorf("got %+v, want %+v and their sums", st, want)
				}
				return s.Serve(ctx)
			}
			cl, err := ps.Connect(ctx, c)
			if err != nil {
				return err
			}
			near, err := ps.Declare[float32](ctx, cl, "near", 1000, ps.Bounded(3))
			if err != nil {
				return err
			}
			round, err := ps.Declare[float32](ctx, cl, "round", 10)
			if err != nil {
				return err
			}
			buf := make([]float32, 1000)
			if c.Rank() == 1 {
				// Reason: the sleep ends after the second table. It takes no real time.
				time.Sleep(21 * time.Second)
				return errors.Join(round.Push(ctx, buf[:10]), cl.Close(ctx))
			}
			h := round.IPushPull(buf[:10], buf[:10])
			for range 2 {
				if err := near.Push(ctx, buf); err != nil {
					return err
				}
			}
			return errors.Join(h.Wait(ctx), cl.Close(ctx))
		})
		if err != nil {
			t.Error(err)
		}
		want := []string{`
tutti: ps: server rank 2 after 10s: 2 tensors, 2 parts, 4.0 kB; B/s in, B/s out, 0 requests queued
         mode  parts  keys   bytes  pushes/s  pulls/s  waiting  lag  tensor
   bounded(3)      1  1000  4.0 kB       0.2      0.0        0    2  near
  synchronous      1    10    40 B       0.1      0.1        1    1  round
`, `
tutti: ps: server rank 2 after 20s: 2 tensors, 2 parts, 4.0 kB; B/s in, B/s out, 0 requests queued
         mode  parts  keys   bytes  pushes/s  pulls/s  waiting  lag  tensor
   bounded(3)      1  1000  4.0 kB       0.0      0.0        0    2  near
  synchronous      1    10    40 B       0.0      0.0        1    1  round
`}
		if len(out.list) != len(want) {
			t.Fatalf("got %d tables, want %d", len(out.list), len(want))
		}
		for i, w := range want {
			// The declarations, which name a line of this file, count as received.
			got := regexp.MustCompile(`\d+ B/s`).ReplaceAllString(out.list[i], "B/s")
			if got != w[1:] {
				t.Errorf("table %d: got\n%s\nwant\n%s", i, got, w[1:])
			}
		}
	})
}

func TestTheEnvironmentTurnsReportsOn(t *testing.T) {
	leak.Check(t)
	stderr := os.Stderr
	defer func() { os.Stderr = stderr }()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	os.Stderr = w
	t.Setenv("TUTTI_REPORT_SERVERS", "1ms")
	err = run("memory", 1, ps.Everywhere(), func(ctx context.Context, cl *ps.Client) error {
		_, err := ps.Declare[float32](ctx, cl, "w", 3)
		b := make([]byte, 1000)
		n, readErr := r.Read(b)
		if !strings.HasPrefix(string(b[:n]), "tutti: ps: server rank 0 after 0s: ") {
			t.Errorf("got %q, want a table", b[:n])
		}
		return errors.Join(err, readErr)
	})
	w.Close()
	if err != nil {
		t.Error(err)
	}
	t.Setenv("TUTTI_REPORT_SERVERS", "often")
	err = run("memory", 1, ps.Everywhere(), func(context.Context, *ps.Client) error { return nil })
	if err := refusal("connect", err, fault.Misuse, `TUTTI_REPORT_SERVERS: got "often", want a positive duration like 10s`); err != nil {
		t.Error(err)
	}
}

// A writer that blocks must not keep a server from ending.
func TestAWriterThatBlocksDoesNotHoldTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		defer close(free)
		err := run("memory", 1, ps.Everywhere(), func(ctx context.Context, cl *ps.Client) error {
			// Reason: the sleep ends when a table is being written. It takes no real time.
			time.Sleep(2 * time.Second)
			return nil
		}, ps.WithReport(time.Second, blocked(free)))
		if err != nil {
			t.Error(err)
		}
	})
}

// A blocked is a writer that blocks until the channel is closed.
type blocked chan struct{}

func (b blocked) Write(p []byte) (int, error) {
	<-b
	return len(p), nil
}
