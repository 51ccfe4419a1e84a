//go:build !race

// Rounds and calls come from a sync.Pool. Under the race detector a sync.Pool drops random items,
// so this test cannot count allocations there.

package comm_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/tensor"
	linked "github.com/tutti-go/tutti/transport/wires"
)

// tries limits how often a test counts the allocations of a call. One count may be too high,
// because a garbage collection empties the pools, and because ranks that wait long exchange
// fingerprints.
const tries = 30

// allocations returns the number of allocations of the whole process per call, after the pools are
// full. It counts several times, returns the lowest count, and stops at the first count of at most
// the given bound.
func allocations(ctx context.Context, c *comm.Comm, calls int, enough float64, call func() error) (float64, error) {
	best := -1.0
	// Rank 0 decides whether its count is low enough, so that all ranks try equally often.
	verdict := []int32{0}
	for try := 0; try < tries && verdict[0] == 0; try++ {
		var before, after runtime.MemStats
		if err := c.Barrier(ctx); err != nil {
			return 0, err
		}
		runtime.ReadMemStats(&before)
		for range calls {
			if err := call(); err != nil {
				return 0, err
			}
		}
		if err := c.Barrier(ctx); err != nil {
			return 0, err
		}
		runtime.ReadMemStats(&after)
		n := float64(after.Mallocs-before.Mallocs) / float64(calls)
		if best < 0 || n < best {
			best = n
		}
		if verdict[0] = 0; best <= enough {
			verdict[0] = 1
		}
		if err := comm.Broadcast(ctx, c, verdict, 0); err != nil {
			return 0, err
		}
	}
	return best, nil
}

// tolerance is how far the average number of allocations per call may exceed the bound.
const tolerance = 0.1

// An allocBound says how often a call over a transport with some options may allocate.
type allocBound struct {
	wire string
	opts []comm.Option
	max  float64
}

func TestASteadyStateAllocatesNothing(t *testing.T) {
	wires := []allocBound{{"memory", nil, 0}, {"memory", messagesOnly, 0}, {"tcp", nil, 0}, {"tcp", redials, 0}}
	if runtime.GOOS == "linux" {
		wires = append(wires, allocBound{"shm", nil, 0}, allocBound{"shm", messagesOnly, 0})
	}
	for _, w := range wires {
		for _, n := range []int{2, 3} {
			for _, count := range []int{1, 1000, 100_000} {
				if n == 3 && count == 1000 {
					continue // the other two lengths show everything that this one would
				}
				often := 200
				if count == 100_000 {
					often = 50
				}
				w.check(t, n, count, often)
			}
		}
	}
}

// No call over verbs, here with software devices, may allocate. Small messages are sent eagerly.
// For large messages the receiver requests the bytes and exposes its memory, and the sender writes
// into that memory.
func TestASteadyStateOverVerbsAllocatesNothing(t *testing.T) {
	for _, count := range []int{1, 1000, 100_000} {
		allocBound{"memory", overSoftware(), 0}.check(t, 2, count, 50)
	}
}

// messagesOnly makes collectives use messages.
var messagesOnly = []comm.Option{comm.WithParameters(comm.Parameters{NoSharedMemory: true})}

// grpcFrame is the largest number of allocations per frame over grpc, on both ranks together.
// Package grpc explains the number.
const grpcFrame = 12

// A call over grpc must allocate at most grpcFrame times per frame. A small call is one frame each
// way. A call of 400,000 bytes is seven segments each way, or two segments with their requests.
func TestOverGRPCAFrameCostsFewAllocations(t *testing.T) {
	for _, tc := range []struct{ count, frames int }{{1, 2}, {1000, 2}, {100_000, 14}} {
		allocBound{"grpc", nil, float64(tc.frames * grpcFrame)}.check(t, 2, tc.count, 100)
	}
}

func TestAListAllocatesNothingInSteadyState(t *testing.T) {
	wires := []string{"memory", "tcp"}
	if runtime.GOOS == "linux" {
		wires = append(wires, "shm")
	}
	for _, wire := range wires {
		for _, opts := range [][]comm.Option{nil, {comm.WithParameters(comm.Parameters{NoSharedMemory: true})}} {
			err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
				algorithm := "ring"
				if c.Bridge().Algorithm("allreduce", 64<<20, comm.Sum) == "shared" {
					algorithm = "shared"
				}
				for _, n := range []int{1, 300, 50_000} {
					list := [][]byte{make([]byte, 4*n), make([]byte, 8), make([]byte, 8*n)}
					got, err := allocations(ctx, c, 100, tolerance, func() error {
						return c.Bridge().AllReduceList(ctx, algorithm, tensor.Float32, list, comm.Sum)
					})
					if err == nil && c.Rank() == 0 && got > tolerance {
						err = fmt.Errorf("a list of %d elements allocates %.2f times per call", 3*n+2, got)
					}
					if err != nil {
						return err
					}
				}
				return nil
			}, append(opts, comm.WithTransport(linked.All()...), comm.WithTransportName(wire))...)
			if err != nil {
				t.Errorf("%s, %d options: %v", wire, len(opts), err)
			}
		}
	}
}

// check makes all calls on n ranks with vectors of the given number of elements.
func (w allocBound) check(t *testing.T, n, count, often int) {
	t.Helper()
	err := comm.Local(n, func(ctx context.Context, c *comm.Comm) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		calls, end, err := steadyCalls(ctx, c, count)
		if err != nil {
			return err
		}
		defer end()
		for _, cs := range calls {
			got, err := allocations(ctx, c, often, w.max+tolerance, cs.call)
			if err != nil {
				return err
			}
			if c.Rank() == 0 && got > w.max+tolerance {
				t.Errorf("%s, %d options, %d ranks: %s of %d elements allocates %.2f times per call, of at most %v", w.wire, len(w.opts), n, cs.name, count, got, w.max)
			}
		}
		return nil
	}, append(w.opts[:len(w.opts):len(w.opts)], comm.WithTransport(linked.All()...), comm.WithTransportName(w.wire))...)
	if err != nil {
		t.Fatal(err)
	}
}

// A steadyCall is a call that a program makes over and over.
type steadyCall struct {
	name string
	call func() error
}

// steadyCalls returns blocking calls and starts of persistent calls. The caller calls the function
// end afterwards.
func steadyCalls(ctx context.Context, c *comm.Comm, count int) (calls []steadyCall, end func(), err error) {
	n := c.Size()
	buf, other, all, every := make([]float32, count), make([]float32, count), make([]float32, n*count), make([]float32, n*count)
	next, last := (c.Rank()+1)%n, (c.Rank()+n-1)%n
	mine := all[c.Rank()*count:][:count]
	counts := slices.Repeat([]int{count}, n)
	room, free, err := comm.Alloc[float32](c, count)
	if err != nil {
		return nil, nil, err
	}
	calls = []steadyCall{
		{"allreduce", func() error { return comm.AllReduce(ctx, c, buf, comm.Sum) }},
		{"allreduce out of place", func() error { return comm.AllReduce(ctx, c, other, comm.Sum, comm.From(buf)) }},
		{"reduce", func() error { return comm.Reduce(ctx, c, other, comm.Max, 1, comm.From(buf)) }},
		{"broadcast", func() error { return comm.Broadcast(ctx, c, buf, 0) }},
		{"allgather", func() error { return comm.AllGather(ctx, c, all, comm.From(mine)) }},
		{"allgatherv", func() error { return comm.AllGather(ctx, c, all, comm.From(mine), comm.Counts(counts)) }},
		{"gather", func() error { return comm.Gather(ctx, c, all, 0, comm.From(buf)) }},
		{"gatherv", func() error { return comm.Gather(ctx, c, all, 0, comm.From(buf), comm.Counts(counts)) }},
		{"scatter", func() error { return comm.Scatter(ctx, c, buf, 0, comm.From(all)) }},
		{"scatterv", func() error { return comm.Scatter(ctx, c, buf, 0, comm.From(all), comm.Counts(counts)) }},
		{"reduce_scatter", func() error { return comm.ReduceScatter(ctx, c, buf, comm.Sum, comm.From(all)) }},
		{"reduce_scatterv", func() error { return comm.ReduceScatter(ctx, c, buf, comm.Sum, comm.From(all), comm.Counts(counts)) }},
		{"alltoall", func() error { return comm.AllToAll(ctx, c, every, comm.From(all)) }},
		{"alltoallv", func() error {
			return comm.AllToAll(ctx, c, every, comm.From(all), comm.Counts(counts), comm.SendCounts(counts))
		}},
		{"scan", func() error { return comm.Scan(ctx, c, buf, comm.Sum) }},
		{"scan out of place", func() error { return comm.Scan(ctx, c, other, comm.Sum, comm.From(buf)) }},
		{"exscan", func() error { return comm.ExScan(ctx, c, buf, comm.Sum) }},
		{"exscan out of place", func() error { return comm.ExScan(ctx, c, other, comm.Sum, comm.From(buf)) }},
		{"barrier", func() error { return c.Barrier(ctx) }},
		{"messages around", func() error { return around(ctx, c, buf, other) }},
		{"messages around into a buffer", func() error { return around(ctx, c, buf, room) }},
		{"exchange", func() error {
			_, err := comm.SendRecv(ctx, c, next, 1, buf, last, 1, other)
			return err
		}},
	}
	starts := steadyStarts(ctx, c, buf, other, all, every, counts)
	end = func() {
		for _, s := range starts {
			s.r.Free()
		}
		free()
	}
	for _, s := range starts {
		calls = append(calls, s.steadyCall)
	}
	return calls, end, nil
}

// A steadyStart is a persistent collective that a program starts over and over.
type steadyStart struct {
	steadyCall
	r *comm.Request
}

// steadyStarts returns all persistent collectives. The vectors all and every have one part per
// rank, of the lengths in counts.
func steadyStarts(ctx context.Context, c *comm.Comm, buf, other, all, every []float32, counts []int) (starts []steadyStart) {
	add := func(name string, r *comm.Request) {
		starts = append(starts, steadyStart{steadyCall{"persistent " + name, func() error {
			if err := r.Start(ctx); err != nil {
				return err
			}
			_, err := r.Wait(ctx)
			return err
		}}, r})
	}
	mine := all[c.Rank()*len(buf):][:len(buf)]
	add("barrier", c.IBarrier(comm.Persistent()))
	add("allreduce", comm.IAllReduce(c, buf, comm.Sum, comm.Persistent()))
	add("allreduce out of place", comm.IAllReduce(c, other, comm.Sum, comm.From(buf), comm.Persistent()))
	add("reduce", comm.IReduce(c, other, comm.Max, 1, comm.From(buf), comm.Persistent()))
	add("broadcast", comm.IBroadcast(c, buf, 0, comm.Persistent()))
	add("allgather", comm.IAllGather(c, all, comm.From(mine), comm.Persistent()))
	add("allgatherv", comm.IAllGather(c, all, comm.From(mine), comm.Counts(counts), comm.Persistent()))
	add("gather", comm.IGather(c, all, 0, comm.From(buf), comm.Persistent()))
	add("gatherv", comm.IGather(c, all, 0, comm.From(buf), comm.Counts(counts), comm.Persistent()))
	add("scatter", comm.IScatter(c, buf, 0, comm.From(all), comm.Persistent()))
	add("scatterv", comm.IScatter(c, buf, 0, comm.From(all), comm.Counts(counts), comm.Persistent()))
	add("reduce_scatter", comm.IReduceScatter(c, buf, comm.Sum, comm.From(all), comm.Persistent()))
	add("reduce_scatterv", comm.IReduceScatter(c, buf, comm.Sum, comm.From(all), comm.Counts(counts), comm.Persistent()))
	add("alltoall", comm.IAllToAll(c, every, comm.From(all), comm.Persistent()))
	add("alltoallv", comm.IAllToAll(c, every, comm.From(all), comm.Counts(counts), comm.SendCounts(counts), comm.Persistent()))
	add("scan", comm.IScan(c, buf, comm.Sum, comm.Persistent()))
	add("scan out of place", comm.IScan(c, other, comm.Sum, comm.From(buf), comm.Persistent()))
	add("exscan", comm.IExScan(c, buf, comm.Sum, comm.Persistent()))
	add("exscan out of place", comm.IExScan(c, other, comm.Sum, comm.From(buf), comm.Persistent()))
	return starts
}
