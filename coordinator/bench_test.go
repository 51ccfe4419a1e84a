package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
)

// BenchmarkSmallTensors is a step of 1,000 tensors of 1 KiB, from the first
// submission to the last wait, on ranks that are goroutines.
func BenchmarkSmallTensors(b *testing.B) {
	for _, ranks := range []int{1, 2, 4} {
		b.Run(fmt.Sprintf("ranks=%d", ranks), func(b *testing.B) {
			b.ReportAllocs()
			err := comm.Local(ranks, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
				s := newSteps(1000, 256)
				for range 3 {
					if err := s.step(ctx, co); err != nil {
						return err
					}
				}
				if err := comm.Barrier(ctx, c); err != nil {
					return err
				}
				if c.Rank() == 0 {
					b.ResetTimer()
				}
				for range b.N {
					if err := s.step(ctx, co); err != nil {
						return err
					}
				}
				return nil
			}))
			if err != nil {
				b.Fatal(err)
			}
		})
	}
}

// steps are a program's that submits the same tensors again and again.
type steps struct {
	names   []string
	bufs    [][]float32
	handles []*coordinator.Handle
}

func newSteps(tensors, elements int) *steps {
	s := &steps{handles: make([]*coordinator.Handle, tensors)}
	for i := range tensors {
		s.names = append(s.names, fmt.Sprintf("layer%d.weight", i))
		s.bufs = append(s.bufs, make([]float32, elements))
	}
	return s
}

func (s *steps) step(ctx context.Context, co *coordinator.Coordinator) error {
	for i, buf := range s.bufs {
		s.handles[i] = coordinator.AllReduce(co, s.names[i], buf, comm.Sum)
	}
	return coordinator.WaitAll(ctx, s.handles...)
}

// What a step costs is there however many tensors it has: messages and lists, and
// none of it for each tensor.
func TestSteadyStepsAllocateNothingPerTensor(t *testing.T) {
	const tensors = 2000
	err := comm.Local(2, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		s := newSteps(tensors, 16)
		const runs = 10
		for range 5 { // until the cache knows all names, and tables have grown
			if err := s.step(ctx, co); err != nil {
				return err
			}
		}
		var before, after runtime.MemStats
		if err := comm.Barrier(ctx, c); err != nil {
			return err
		}
		if c.Rank() == 0 {
			runtime.ReadMemStats(&before)
		}
		for range runs {
			if err := s.step(ctx, co); err != nil {
				return err
			}
		}
		if c.Rank() > 0 {
			return nil
		}
		runtime.ReadMemStats(&after)
		if got := (after.Mallocs - before.Mallocs) / runs; got > tensors/4 {
			return fmt.Errorf("got %d allocations in a step of %d tensors on both ranks", got, tensors)
		}
		return nil
	}, coordinator.WithCache(2*tensors), coordinator.WithCycle(time.Minute))) // so that a slow machine does not tell a step in many messages
	if err != nil {
		t.Fatal(err)
	}
}

func TestAHandleStandsForTheNextSubmissionOfItsNameOnceAWaitHasReturned(t *testing.T) {
	err := comm.Local(2, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		one := []int32{1}
		first := coordinator.AllReduce(co, "a", one, comm.Sum)
		<-first.Done() // nobody has waited: the program may still ask it
		second := coordinator.AllReduce(co, "a", one, comm.Sum)
		if second == first {
			return errors.New("a handle that nobody has waited for was used again")
		}
		if err := coordinator.WaitAll(ctx, first, second); err != nil {
			return err
		}
		two := []int32{1}
		third := coordinator.AllReduce(co, "a", two, comm.Sum)
		if err := third.Wait(ctx); err != nil || third != second || one[0] != 4 || two[0] != 2 {
			return fmt.Errorf("got %v and %v, error %v", one, two, err)
		}
		select {
		case <-third.Done():
		default:
			return errors.New("Done is open after Wait")
		}
		other := coordinator.AllReduce(co, "a", []int64{1, 2}, comm.Sum) // another tensor by the same name
		if err := other.Wait(ctx); err != nil || other == third {
			return fmt.Errorf("another type: %v", err)
		}
		return third.Wait(ctx)
	}))
	if err != nil {
		t.Fatal(err)
	}
}
