package comm_test

import (
	"context"
	"runtime"
	"testing"

	"github.com/tutti-go/tutti/comm"
)

// allocations are those of the whole process, per call, once the pools are full.
// The lowest of several tries counts: a collection may empty the pools.
func allocations(ctx context.Context, c *comm.Comm, calls int, call func() error) (float64, error) {
	best := -1.0
	for range 5 {
		var before, after runtime.MemStats
		if err := comm.Barrier(ctx, c); err != nil {
			return 0, err
		}
		runtime.ReadMemStats(&before)
		for range calls {
			if err := call(); err != nil {
				return 0, err
			}
		}
		if err := comm.Barrier(ctx, c); err != nil {
			return 0, err
		}
		runtime.ReadMemStats(&after)
		n := float64(after.Mallocs-before.Mallocs) / float64(calls)
		if best < 0 || n < best {
			best = n
		}
	}
	return best, nil
}

func TestASteadyStateAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector's sync.Pool forgets at random")
	}
	const often = 200
	for _, wire := range []string{"memory", "tcp"} {
		for _, count := range []int{1, 1000, 100_000} {
			err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				buf, other := make([]float32, count), make([]float32, count)
				peer := 1 - c.Rank()
				calls := []struct {
					name string
					call func() error
				}{
					{"allreduce", func() error { return comm.AllReduce(ctx, c, buf, comm.Sum) }},
					{"broadcast", func() error { return comm.Broadcast(ctx, c, buf, 0) }},
					{"barrier", func() error { return comm.Barrier(ctx, c) }},
					{"ping-pong", func() error { return pingPong(ctx, c, buf, other) }},
					{"exchange", func() error {
						_, err := comm.Exchange(ctx, c, peer, 1, buf, peer, 1, other)
						return err
					}},
				}
				for _, cs := range calls {
					n, err := allocations(ctx, c, often, cs.call)
					if err != nil {
						return err
					}
					if c.Rank() == 0 && n >= 0.5 {
						t.Errorf("%s: %s of %d elements allocates %.2f times per call", wire, cs.name, count, n)
					}
				}
				return nil
			}, comm.WithTransport(wire))
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

func pingPong(ctx context.Context, c *comm.Comm, out, in []float32) error {
	peer := 1 - c.Rank()
	if c.Rank() == 0 {
		if err := comm.Send(ctx, c, peer, 1, out); err != nil {
			return err
		}
	}
	if _, err := comm.Recv(ctx, c, peer, 1, in); err != nil {
		return err
	}
	if c.Rank() == 0 {
		return nil
	}
	return comm.Send(ctx, c, peer, 1, out)
}
