package ps_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/ps"
	linked "github.com/tutti-go/tutti/transport/wires"
)

// wires returns the wires that every system supports, and on Linux also shm.
func wires() []string {
	all := []string{"memory", "tcp", "grpc"}
	if runtime.GOOS == "linux" {
		all = append(all, "shm")
	}
	return all
}

// run runs worker on the ranks that work, over a wire.
func run(wire string, ranks int, p ps.Placement, worker func(context.Context, *ps.Client) error, opts ...ps.Option) error {
	return comm.Local(ranks, func(ctx context.Context, c *comm.Comm) error {
		return ps.Run(ctx, c, p, worker, nil, opts...)
	}, comm.WithTransportName(wire), comm.WithTransport(linked.All()...))
}

// placements are those that tests run with, and the ranks of a job.
var placements = []struct {
	name  string
	ranks int
	p     ps.Placement
}{
	{"1 server", 3, ps.Servers(1)},
	{"2 servers", 5, ps.Servers(2)},
	{"everywhere", 3, ps.Everywhere()},
	{"alone", 1, ps.Everywhere()},
}

func everywhere(t *testing.T, f func(t *testing.T, wire string, ranks int, p ps.Placement)) {
	for _, wire := range wires() {
		for _, p := range placements {
			t.Run(wire+"/"+p.name, func(t *testing.T) {
				leak.Check(t)
				f(t, wire, p.ranks, p.p)
			})
		}
	}
}

// value is what a worker pushes at a step. The numbers are such that the order of additions shows in
// the bits of the sum.
func value(worker, step, i int) float32 {
	x := uint32(worker*7919+step*104729+i*1299709) * 2654435761
	return float32(int32(x)) / float32(int32(1)<<(x%23+3))
}

func vector(worker, step, n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = value(worker, step, i)
	}
	return v
}

// reduced returns the pushes of all workers, added in the order of their ranks, and divided.
func reduced(workers, step, n int, mean bool) []float32 {
	sum := vector(0, step, n)
	for w := 1; w < workers; w++ {
		for i, v := range vector(w, step, n) {
			sum[i] += v
		}
	}
	if mean {
		for i := range sum {
			sum[i] /= float32(workers)
		}
	}
	return sum
}

func equal(what string, got, want []float32) error {
	if slices.Equal(got, want) {
		return nil
	}
	for i := range got {
		if got[i] != want[i] {
			return fmt.Errorf("%s: element %d of %d: got %v, want %v", what, i, len(got), got[i], want[i])
		}
	}
	return fmt.Errorf("%s: got %d elements, want %d", what, len(got), len(want))
}

func TestASynchronousVersionIsTheReductionInRankOrder(t *testing.T) {
	everywhere(t, func(t *testing.T, wire string, ranks int, p ps.Placement) {
		err := run(wire, ranks, p, func(ctx context.Context, cl *ps.Client) error {
			me, workers := cl.Workers().Rank(), cl.Workers().Size()
			for _, n := range []int{1, 1000, 10_000} {
				for _, op := range []comm.Op{comm.Sum, comm.Mean} {
					w, err := ps.Declare[float32](ctx, cl, fmt.Sprint(n, op.Name()), n, ps.Reduce(op))
					if err != nil {
						return err
					}
					for step := range 5 {
						buf := vector(me, step, n)
						if step%2 == 0 {
							err = w.PushPull(ctx, buf, buf)
						} else if err = w.Push(ctx, buf); err == nil {
							err = w.Pull(ctx, buf)
						}
						if err != nil {
							return err
						}
						if err := equal(fmt.Sprintf("step %d", step), buf, reduced(workers, step, n, op.ID() == comm.Mean.ID())); err != nil {
							return err
						}
					}
				}
			}
			return nil
		}, ps.WithPart(8000))
		if err != nil {
			t.Error(err)
		}
	})
}
