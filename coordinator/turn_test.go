package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	linked "github.com/tutti-go/tutti/transport/wires"
)

// Many goroutines submit, wait for one or for many handles, wait for the same handles, and give up,
// all at the same time. Each goroutine may step the state machines or poll. All must get their
// results.
func TestGoroutinesThatSubmitAndWaitAtOnceAllGetTheirResults(t *testing.T) {
	concurrentSteps(t, 3, 6, 20)
}

// With more ranks than inlineRanks, a Submit on rank 0 wakes the loop to send the order. All
// goroutines must still get their results.
func TestGoroutinesOfManyRanksThatSubmitAndWaitAtOnceAllGetTheirResults(t *testing.T) {
	concurrentSteps(t, 9, 2, 5)
}

func concurrentSteps(t *testing.T, ranks, goroutines, steps int) {
	const tensors = 8
	for _, wire := range wires() {
		t.Run(wire, func(t *testing.T) {
			leak.Check(t)
			err := comm.Local(ranks, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
				errs := make(chan error, goroutines)
				for g := range goroutines {
					go func() { errs <- concurrentRankSteps(ctx, c, co, g, steps, tensors) }()
				}
				var all []error
				for range goroutines {
					all = append(all, <-errs)
				}
				return errors.Join(all...)
			}), comm.WithTransport(linked.All()...), comm.WithTransportName(wire))
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// concurrentRankSteps runs the steps of one goroutine.
func concurrentRankSteps(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator, g, steps, tensors int) error {
	over, cancel := context.WithCancel(ctx)
	cancel()
	for step := range steps {
		bufs := make([][]int32, tensors)
		var hs []*coordinator.Handle
		for i := range bufs {
			bufs[i] = []int32{int32(c.Rank() + step + i)}
			hs = append(hs, coordinator.AllReduce(co, fmt.Sprint(g, "/", (i+c.Rank())%tensors), bufs[i], comm.Max))
		}
		if err := coordinator.WaitAll(over, hs...); err != nil && !errors.Is(err, fault.Canceled) {
			return fmt.Errorf("a WaitAll that is cancelled says %w", err)
		}
		var two sync.WaitGroup
		var other error
		two.Go(func() { other = coordinator.WaitAll(ctx, hs[tensors/2:]...) })
		err := coordinator.WaitAll(ctx, append(hs, hs[0])...)
		two.Wait()
		if err = errors.Join(err, other); err != nil {
			return err
		}
		for i, h := range hs {
			if err := h.Wait(ctx); err != nil {
				return err
			}
			want := int32(0)
			for r := range c.Size() { // rank r's tensor of that name
				at := (i + c.Rank() - r + c.Size()*tensors) % tensors
				want = max(want, int32(r+step+at))
			}
			if bufs[i][0] != want {
				return fmt.Errorf("goroutine %d, step %d, tensor %d: got %d, want %d", g, step, i, bufs[i][0], want)
			}
		}
	}
	return nil
}
