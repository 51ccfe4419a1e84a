package comm_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/internal/test/worldtest"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/flaky"
	linked "github.com/tutti-go/tutti/transport/wires"
)

// Memory from Alloc must work like any other memory, for messages and collectives over every
// transport. It must stay usable until free, even after its communicator has closed.
func TestBufferHoldsElements(t *testing.T) {
	for _, wire := range transports {
		for _, n := range []int{1, 2, 3} {
			leak.Check(t)
			rooms, frees := make([][]float32, n), make([]func() error, n)
			err := comm.Local(n, func(ctx context.Context, c *comm.Comm) error {
				const count = 200_003
				dup, err := c.Dup(ctx)
				if err != nil {
					return err
				}
				room, free, err := comm.Alloc[float32](dup, 2*count)
				if err != nil {
					return err
				}
				rooms[c.Rank()], frees[c.Rank()] = room, free
				out, in := room[:count], room[count:]
				if slices.Max(in) != 0 || slices.Min(in) != 0 {
					t.Error("the memory is not zeroed")
				}
				next, prev := (c.Rank()+1)%n, (c.Rank()+n-1)%n
				for i := range out {
					out[i] = float32(c.Rank() + i%100)
				}
				if err := dup.Close(ctx); err != nil {
					return err
				}
				for range 3 {
					clear(in)
					if _, err := comm.SendRecv(ctx, c, next, 1, out, prev, 1, in); err != nil {
						return err
					}
					for i := range in {
						if in[i] != float32(prev+i%100) {
							return fmt.Errorf("rank %d has %v at %d", c.Rank(), in[i], i)
						}
					}
				}
				return comm.AllReduce(ctx, c, in, comm.Sum)
			}, comm.WithTransport(linked.All()...), comm.WithTransportName(wire))
			if err != nil {
				t.Fatalf("%s, %d ranks: %v", wire, n, err)
			}
			for r, free := range frees { // the job is over; the memory is still there
				if got, want := rooms[r][200_003+100], float32(n*(n-1)/2); got != want {
					t.Errorf("%s: rank %d has %v, want %v", wire, r, got, want)
				}
				if err := errors.Join(free(), free()); err != nil {
					t.Errorf("%s: freed twice: %v", wire, err)
				}
			}
		}
	}
}

func TestInvalidBufferSizesAreMisuse(t *testing.T) {
	for _, wire := range transports {
		err := comm.Local(2, func(_ context.Context, c *comm.Comm) error {
			for _, n := range []int{-1, 1 << 62} {
				if _, _, err := comm.Alloc[float64](c, n); !errors.Is(err, fault.Misuse) {
					t.Errorf("%s: %d elements: got %v, want %v", wire, n, err, fault.Misuse)
				}
			}
			none, free, err := comm.Alloc[float64](c, 0)
			if err != nil || len(none) != 0 || free() != nil {
				t.Errorf("%s: no elements: got %v", wire, err)
			}
			return nil
		}, comm.WithTransport(linked.All()...), comm.WithTransportName(wire))
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Over shm the sender of a large message copies it once, straight into memory from Alloc. It uses
// the ring buffer instead if the receive is into other memory, if the message has a checksum, or if
// it is sent eagerly.
func TestLargeReceivesIntoABufferAreZeroCopy(t *testing.T) {
	needsSharedMemory(t)
	for name, tc := range map[string]struct {
		call     worldtest.Call
		opts     []comm.Option
		straight bool
	}{
		"into a buffer":             {worldtest.IntoBuffers[int32](), nil, true},
		"into ordinary memory":      {worldtest.Messages[int32]()[1], nil, false},
		"into a buffer, with sums":  {worldtest.IntoBuffers[int32](), []comm.Option{comm.WithParameters(comm.Parameters{Checksums: true})}, false},
		"into a buffer, all pushed": {worldtest.IntoBuffers[int32](), []comm.Option{comm.WithParameters(comm.Parameters{Threshold: 1 << 20})}, false},
	} {
		count := 300_000
		if name == "into a buffer, all pushed" {
			count = 30_000
		}
		var writes atomic.Int64
		script := flaky.New(flaky.Options{Counts: func(st flaky.Step) bool {
			if st.Kind == flaky.Write {
				writes.Add(1)
			}
			return true
		}})
		var trackers [2]worldtest.BufferTracker
		err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
			return tc.call.Run(ctx, c, count, &trackers[c.Rank()])
		}, append(tc.opts, comm.WithTransportName("shm"),
			comm.WithWrap(func(rank int, t transport.Transport) transport.Transport { return script.Wrap(t, rank) }))...)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := writes.Load() > 0; got != tc.straight {
			t.Errorf("%s: %d frames were written straight", name, writes.Load())
		}
		for i := range trackers {
			trackers[i].Returned()
			if err := trackers[i].Check(); err != nil {
				t.Error(err)
			}
		}
	}
}

// The test injects faults at exposures of memory and at frames written into exposed memory, one per
// run. Every call must end, with the loss or with the right result.
func TestCutsOfWritesIntoBuffers(t *testing.T) {
	needsSharedMemory(t)
	leak.Check(t)
	var sum runCounts
	w := newInjectionPool()
	for n := 2; n <= 3; n++ {
		s := &faultCase{wire: "shm", n: n, call: worldtest.IntoBuffers[int32](), count: threeFrames,
			opts: []comm.Option{comm.WithParameters(comm.Parameters{NoSharedMemory: true})}}
		for i, at := range s.baseline(t, &sum) {
			for j, b := range append(append(linkCuts[:3:3], deaths...), corruptHead) {
				if soaking || (i+j)%5 == 0 {
					w.inject(t, s, &sum, b, at)
				}
			}
		}
	}
	w.running.Wait()
	sum.report(t)
}
