//go:build unix

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
)

// A mismatchCase is a call that three ranks make differently. It returns the location of this
// rank's call.
type mismatchCase struct {
	name string
	call func(ctx context.Context, c *comm.Comm) (callSite, error)
}

func mismatchCases() []mismatchCase {
	return []mismatchCase{
		{name: "collective", call: func(ctx context.Context, c *comm.Comm) (callSite, error) {
			if c.Rank() == 1 {
				return callHere(), c.Barrier(ctx)
			}
			return callHere(), comm.AllReduce(ctx, c, make([]float32, 1000), comm.Sum)
		}},
		{name: "collective, of nothing", call: func(ctx context.Context, c *comm.Comm) (callSite, error) {
			if c.Rank() == 1 {
				return callHere(), c.Barrier(ctx)
			}
			return callHere(), comm.AllReduce(ctx, c, make([]float32, 0), comm.Sum)
		}},
		{name: "three collectives", call: func(ctx context.Context, c *comm.Comm) (callSite, error) {
			switch c.Rank() {
			case 0:
				return callHere(), c.Barrier(ctx)
			case 1:
				return callHere(), comm.AllGather(ctx, c, make([]int32, 3*100), comm.From(make([]int32, 100)))
			}
			return callHere(), comm.AllToAll(ctx, c, make([]int32, 300))
		}},
		{name: "dtype of one size", call: func(ctx context.Context, c *comm.Comm) (callSite, error) {
			if c.Rank() == 0 {
				return callHere(), comm.AllReduce(ctx, c, make([]int32, 1000), comm.Sum)
			}
			return callHere(), comm.AllReduce(ctx, c, make([]float32, 1000), comm.Sum)
		}},
		{name: "dtype of another size", call: func(ctx context.Context, c *comm.Comm) (callSite, error) {
			if c.Rank() == 2 {
				return callHere(), comm.AllReduce(ctx, c, make([]float64, 100_000), comm.Sum)
			}
			return callHere(), comm.AllReduce(ctx, c, make([]float32, 100_000), comm.Sum)
		}},
		{name: "count", call: func(ctx context.Context, c *comm.Comm) (callSite, error) {
			if c.Rank() == 1 {
				return callHere(), comm.AllReduce(ctx, c, make([]float32, 1001), comm.Sum)
			}
			return callHere(), comm.AllReduce(ctx, c, make([]float32, 1000), comm.Sum)
		}},
		{name: "count, nothing on one", call: func(ctx context.Context, c *comm.Comm) (callSite, error) {
			if c.Rank() == 2 {
				return callHere(), comm.AllReduce(ctx, c, make([]float32, 0), comm.Sum)
			}
			return callHere(), comm.AllReduce(ctx, c, make([]float32, 1000), comm.Sum)
		}},
		{name: "count, a broadcast of nothing", call: func(ctx context.Context, c *comm.Comm) (callSite, error) {
			if c.Rank() == 0 {
				return callHere(), comm.Broadcast(ctx, c, make([]float32, 0), 0)
			}
			return callHere(), comm.Broadcast(ctx, c, make([]float32, 10), 0)
		}},
		{name: "count, small and large", call: func(ctx context.Context, c *comm.Comm) (callSite, error) {
			if c.Rank() == 0 {
				return callHere(), comm.AllReduce(ctx, c, make([]float32, 4<<20), comm.Sum)
			}
			return callHere(), comm.AllReduce(ctx, c, make([]float32, 1), comm.Sum)
		}},
		{name: "root of a broadcast", call: func(ctx context.Context, c *comm.Comm) (callSite, error) {
			if c.Rank() == 2 {
				return callHere(), comm.Broadcast(ctx, c, make([]float32, 1000), 1)
			}
			return callHere(), comm.Broadcast(ctx, c, make([]float32, 1000), 0)
		}},
		{name: "three ranks, three roots, broadcast", call: func(ctx context.Context, c *comm.Comm) (callSite, error) {
			switch c.Rank() {
			case 0:
				return callHere(), comm.Broadcast(ctx, c, make([]float32, 1000), 0)
			case 1:
				return callHere(), comm.Broadcast(ctx, c, make([]float32, 1000), 1)
			}
			return callHere(), comm.Broadcast(ctx, c, make([]float32, 1000), 2)
		}},
		{name: "three ranks, three roots, reduce", call: func(ctx context.Context, c *comm.Comm) (callSite, error) {
			dst, src := make([]float32, 1000), make([]float32, 1000)
			switch c.Rank() {
			case 0:
				return callHere(), comm.Reduce(ctx, c, dst, comm.Sum, 0, comm.From(src))
			case 1:
				return callHere(), comm.Reduce(ctx, c, dst, comm.Sum, 1, comm.From(src))
			}
			return callHere(), comm.Reduce(ctx, c, dst, comm.Sum, 2, comm.From(src))
		}},
		{name: "three ranks, three roots, all someone else", call: func(ctx context.Context, c *comm.Comm) (callSite, error) {
			buf := make([]float32, 1000)
			switch c.Rank() {
			case 0:
				return callHere(), comm.Broadcast(ctx, c, buf, 1)
			case 1:
				return callHere(), comm.Broadcast(ctx, c, buf, 2)
			}
			return callHere(), comm.Broadcast(ctx, c, buf, 0)
		}},
		{name: "three ranks, three roots, gather", call: func(ctx context.Context, c *comm.Comm) (callSite, error) {
			dst, src := make([]float32, 300), make([]float32, 100)
			switch c.Rank() {
			case 0:
				return callHere(), comm.Gather(ctx, c, dst, 0, comm.From(src))
			case 1:
				return callHere(), comm.Gather(ctx, c, dst, 1, comm.From(src))
			}
			return callHere(), comm.Gather(ctx, c, dst, 2, comm.From(src))
		}},
		{name: "three ranks, three roots, scatter", call: func(ctx context.Context, c *comm.Comm) (callSite, error) {
			dst, src := make([]float32, 100), make([]float32, 300)
			switch c.Rank() {
			case 0:
				return callHere(), comm.Scatter(ctx, c, dst, 0, comm.From(src))
			case 1:
				return callHere(), comm.Scatter(ctx, c, dst, 1, comm.From(src))
			}
			return callHere(), comm.Scatter(ctx, c, dst, 2, comm.From(src))
		}},
		{name: "operator", call: func(ctx context.Context, c *comm.Comm) (callSite, error) {
			if c.Rank() == 0 {
				return callHere(), comm.AllReduce(ctx, c, make([]float32, 1000), comm.Max)
			}
			return callHere(), comm.AllReduce(ctx, c, make([]float32, 1000), comm.Sum)
		}},
		{name: "operator, on nothing", call: func(ctx context.Context, c *comm.Comm) (callSite, error) {
			if c.Rank() == 0 {
				return callHere(), comm.AllReduce(ctx, c, make([]float32, 0), comm.Max)
			}
			return callHere(), comm.AllReduce(ctx, c, make([]float32, 0), comm.Sum)
		}},
		{name: "non-blocking", call: func(ctx context.Context, c *comm.Comm) (callSite, error) {
			var at callSite
			var rq *comm.Request
			if c.Rank() == 1 {
				at, rq = callHere(), c.IBarrier()
			} else {
				at, rq = callHere(), comm.IAllReduce(c, make([]float32, 1000), comm.Sum)
			}
			_, err := rq.Wait(ctx)
			return at, err
		}},
		{name: "scan and exscan", call: func(ctx context.Context, c *comm.Comm) (callSite, error) {
			if c.Rank() == 1 {
				return callHere(), comm.ExScan(ctx, c, make([]float32, 1000), comm.Sum)
			}
			return callHere(), comm.Scan(ctx, c, make([]float32, 1000), comm.Sum)
		}},
		{name: "operator of a scan", call: func(ctx context.Context, c *comm.Comm) (callSite, error) {
			if c.Rank() == 0 {
				return callHere(), comm.Scan(ctx, c, make([]float32, 10), comm.Max)
			}
			return callHere(), comm.Scan(ctx, c, make([]float32, 10), comm.Sum)
		}},
		{name: "counts of a v-variant", call: func(ctx context.Context, c *comm.Comm) (callSite, error) {
			if c.Rank() == 1 {
				return callHere(), comm.AllGather(ctx, c, make([]int32, 6), comm.From(make([]int32, 2)), comm.Counts([]int{1, 2, 3}))
			}
			return callHere(), comm.AllGather(ctx, c, make([]int32, 6), comm.From(make([]int32, 2)), comm.Counts([]int{2, 2, 2}))
		}},
		{name: "split and dup", call: func(ctx context.Context, c *comm.Comm) (callSite, error) {
			if c.Rank() == 1 {
				at := callBelow()
				_, err := c.Dup(ctx)
				return at, err
			}
			at := callBelow()
			_, err := c.Split(ctx, 0, 0)
			return at, err
		}},
		{name: "dtype, of nothing", call: func(ctx context.Context, c *comm.Comm) (callSite, error) {
			if c.Rank() == 0 {
				return callHere(), comm.AllReduce(ctx, c, make([]float64, 0), comm.Sum)
			}
			return callHere(), comm.AllReduce(ctx, c, make([]float32, 0), comm.Sum)
		}},
	}
}

// runMismatch runs each of the mismatchCases on a new communicator. In each case, not all ranks
// make the same call. After each case, runMismatch checks that another communicator still works.
func runMismatch(ctx context.Context, a *rankProcess, c *comm.Comm) error {
	for i, q := range mismatchCases() {
		twin, err := c.Dup(ctx)
		if err != nil {
			return err
		}
		if err := c.Barrier(ctx); err != nil { // so that no rank is delayed by the last case
			return err
		}
		at, err := q.call(ctx, twin)
		a.report(fmt.Sprintf("called %d", i), at, err)
		at, err = callHere(), twin.Barrier(ctx)
		a.report(fmt.Sprintf("next %d", i), at, err)
		if err := c.Barrier(ctx); err != nil {
			return fmt.Errorf("after %q another communicator is of no use: %w", q.name, err)
		}
		twin.Close(ctx)
	}
	return nil
}

func TestMismatchNamesBothCalls(t *testing.T) {
	const ranks = 3
	for _, wire := range wires() {
		t.Run(wire, func(t *testing.T) {
			j := run(t, ranks, wire, instruction{Program: "disagree"})
			for i, q := range mismatchCases() {
				t.Run(q.name, func(t *testing.T) {
					in := *j
					in.t = t
					called := in.events(fmt.Sprintf("called %d", i), ranks)
					next := in.events(fmt.Sprintf("next %d", i), ranks)
					for r := range ranks {
						// The call had returned before any rank detected the mismatch.
						if !called[r].Failed {
							in.wantMismatch(next[r], called)
						} else {
							in.wantMismatch(called[r], called)
						}
						if !next[r].is(fault.Mismatch) {
							t.Errorf("rank %d got from its next call %q, want a %q", r, next[r].Text, fault.Mismatch)
						}
					}
				})
			}
			j.wantExit(0)
		})
	}
}

// wantMismatch checks that an error names two calls and their locations. The error must come within
// a second after the last rank's call, because there may be no mismatch before. As in wantWithin,
// the limit is extended by the time for which the ranks had no processor.
func (j *job) wantMismatch(e event, made []event) {
	j.t.Helper()
	if !e.is(fault.Mismatch) {
		j.t.Errorf("rank %d got %q, want a %q", e.Rank, e.Text, fault.Mismatch)
		return
	}
	began, most := e.Began, time.Second
	for _, m := range made {
		began = max(began, m.Began)
		if m.Rank == e.Rank {
			m.Starved[1] = e.Starved[1]
		}
		most += m.Starved[1] - m.Starved[0]
	}
	if elapsed := time.Duration(e.Ended - began); elapsed > most {
		j.t.Errorf("rank %d was told after %v, want at most %v", e.Rank, elapsed, most)
	}
	var sites, calls []string
	for _, p := range e.Peers {
		if p.Rank >= len(made) || p.At != made[p.Rank].At {
			j.t.Errorf("rank %d says that rank %d is at %q, which called at %q: %s", e.Rank, p.Rank, p.At, made[p.Rank].At, e.Text)
		}
		sites, calls = append(sites, p.At), append(calls, p.Call)
	}
	if len(calls) < 2 || sites[0] == sites[1] {
		j.t.Errorf("rank %d names the calls %q at %q, want two that differ: %s", e.Rank, calls, sites, e.Text)
	}
}
