package comm_test

import (
	"context"
	"runtime"
	"testing"
	"time"

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

// A thrifty is a wire, with options, over which calls allocate at most so often.
type thrifty struct {
	wire string
	opts []comm.Option
	most float64
}

func TestASteadyStateAllocatesNothing(t *testing.T) {
	wires := []thrifty{{"memory", nil, 0}, {"memory", messages, 0}, {"tcp", nil, 0}}
	if runtime.GOOS == "linux" {
		wires = append(wires, thrifty{"shm", nil, 0}, thrifty{"shm", messages, 0})
	}
	for _, w := range wires {
		for _, count := range []int{1, 1000, 100_000} {
			w.hold(t, count, 200)
		}
	}
}

// messages has collectives go by messages.
var messages = []comm.Option{comm.WithoutSharedMemory()}

// What a frame over grpc may allocate at most, both ranks together; package grpc says
// how much it is.
const grpcFrame = 12

// A small call is one frame each way; one of 400,000 bytes is seven segments each
// way, or two with what they were asked for by.
func TestOverGRPCAFrameCostsFewAllocations(t *testing.T) {
	for _, tc := range []struct{ count, frames int }{{1, 2}, {1000, 2}, {100_000, 14}} {
		thrifty{"grpc", nil, float64(tc.frames * grpcFrame)}.hold(t, tc.count, 100)
	}
}

// hold makes all calls with vectors of that length.
func (w thrifty) hold(t *testing.T, count, often int) {
	if raceEnabled {
		t.Skip("the race detector's sync.Pool forgets at random")
	}
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		calls, end, err := steadyCalls(ctx, c, count)
		if err != nil {
			return err
		}
		defer end()
		for _, cs := range calls {
			n, err := allocations(ctx, c, often, cs.call)
			if err != nil {
				return err
			}
			if c.Rank() == 0 {
				t.Logf("%s, %d options: %s of %d elements: %.2f", w.wire, len(w.opts), cs.name, count, n)
			}
			if c.Rank() == 0 && n >= w.most+0.5 {
				t.Errorf("%s, %d options: %s of %d elements allocates %.2f times per call, of at most %v", w.wire, len(w.opts), cs.name, count, n, w.most)
			}
		}
		return nil
	}, append(w.opts[:len(w.opts):len(w.opts)], comm.WithTransport(w.wire), noHeartbeats)...)
	if err != nil {
		t.Fatal(err)
	}
}

// noHeartbeats keeps what comes by the clock from being counted: on a busy machine
// calls take long, and many heartbeats would fall into them.
var noHeartbeats = comm.WithHeartbeat(time.Hour, 3*time.Hour)

// A steadyCall is a call that a program makes over and over.
type steadyCall struct {
	name string
	call func() error
}

// steadyCalls are blocking calls, and starts of persistent ones, until end.
func steadyCalls(ctx context.Context, c *comm.Comm, count int) (calls []steadyCall, end func(), err error) {
	buf, other, both := make([]float32, count), make([]float32, count), make([]float32, 2*count)
	peer := 1 - c.Rank()
	lo, hi := c.Rank()*count, (c.Rank()+1)*count
	room, err := comm.Alloc[float32](c, count)
	if err != nil {
		return nil, nil, err
	}
	sum, err := comm.AllReduceInit(c, buf, comm.Sum)
	if err != nil {
		return nil, nil, err
	}
	started := func() error {
		if err := sum.Start(ctx); err != nil {
			return err
		}
		return sum.Wait(ctx)
	}
	return []steadyCall{
		{"allreduce", func() error { return comm.AllReduce(ctx, c, buf, comm.Sum) }},
		{"reduce", func() error { return comm.Reduce(ctx, c, other, buf, comm.Max, 1) }},
		{"broadcast", func() error { return comm.Broadcast(ctx, c, buf, 0) }},
		{"allgather", func() error { return comm.AllGather(ctx, c, both, both[lo:hi]) }},
		{"gather", func() error { return comm.Gather(ctx, c, both, buf, 0) }},
		{"scatter", func() error { return comm.Scatter(ctx, c, buf, both, 0) }},
		{"reduce_scatter", func() error { return comm.ReduceScatter(ctx, c, buf, both, comm.Sum) }},
		{"alltoall", func() error { return comm.AllToAll(ctx, c, both, both) }},
		{"barrier", func() error { return comm.Barrier(ctx, c) }},
		{"ping-pong", func() error { return pingPong(ctx, c, buf, other) }},
		{"ping-pong into a buffer", func() error { return pingPong(ctx, c, buf, room.Slice()) }},
		{"exchange", func() error {
			_, err := comm.Exchange(ctx, c, peer, 1, buf, peer, 1, other)
			return err
		}},
		{"persistent allreduce", started},
	}, func() { sum.Close(); room.Close() }, nil
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
