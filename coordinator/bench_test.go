package coordinator_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
	linked "github.com/tutti-go/tutti/transport/wires"
)

// BenchmarkSmallTensors measures a step of 1,000 tensors of 1 KiB, from the first submission to the
// last wait. The ranks are goroutines.
func BenchmarkSmallTensors(b *testing.B) {
	for _, ranks := range []int{1, 2, 4} {
		b.Run(fmt.Sprintf("ranks=%d", ranks), func(b *testing.B) { benchSteps(b, ranks, "auto", 1000, 256) })
	}
}

// benchSteps measures steps with a number of tensors of equal size. Three steps run before the
// measurement.
func benchSteps(b *testing.B, ranks int, wire string, tensors, elements int, opts ...coordinator.Option) {
	b.ReportAllocs()
	err := comm.Local(ranks, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		s := newSteps(tensors, elements)
		for range 3 {
			if err := s.step(ctx, co); err != nil {
				return err
			}
		}
		if err := c.Barrier(ctx); err != nil {
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
	}, opts...), comm.WithTransport(linked.All()...), comm.WithTransportName(wire))
	if err != nil {
		b.Fatal(err)
	}
}

// steps runs the steps of a program that declares its tensors in the first step, and submits the
// same tensors in every step.
type steps struct {
	names   []string
	bufs    [][]float32
	handles []*coordinator.Handle
}

func newSteps(tensors, elements int) *steps {
	s := new(steps)
	for i := range tensors {
		s.names = append(s.names, fmt.Sprintf("layer%d.weight", i))
		s.bufs = append(s.bufs, make([]float32, elements))
	}
	return s
}

func (s *steps) step(ctx context.Context, co *coordinator.Coordinator) error {
	if s.handles == nil {
		for i, buf := range s.bufs {
			s.handles = append(s.handles, coordinator.Declare(co, s.names[i], buf, comm.Sum))
		}
	}
	for _, h := range s.handles {
		h.Submit()
	}
	return coordinator.WaitAll(ctx, s.handles...)
}

// A step may allocate messages and lists, but their number must not depend on the number of
// tensors. It must allocate nothing for a tensor, or for a part of a large tensor.
func TestSteadyStepsAllocateNothingPerTensor(t *testing.T) {
	for _, c := range []struct {
		what                      string
		tensors, elements, pieces int // pieces: number of tensors or parts that are executed
		opts                      []coordinator.Option
	}{
		{"small tensors", 2000, 16, 2000, nil},
		{"tensors that go alone", 300, 300, 300, []coordinator.Option{coordinator.WithMaxFusedTensor(0)}},
		{"large tensors in parts", 3, 100_000, 300, []coordinator.Option{coordinator.WithPartition(4000)}},
	} {
		t.Run(c.what, func(t *testing.T) {
			opts := append(c.opts, coordinator.WithCache(2*c.tensors), coordinator.WithCredit(1<<30),
				coordinator.WithCycle(time.Minute)) // so that a slow machine does not split a step into many lists
			err := comm.Local(2, with(func(ctx context.Context, cm *comm.Comm, co *coordinator.Coordinator) error {
				got, err := allocations(ctx, cm, co, newSteps(c.tensors, c.elements))
				if limit := uint64(40 + c.pieces/4); err == nil && got > limit {
					err = fmt.Errorf("got %d allocations in a step on both ranks, want at most %d", got, limit)
				}
				return err
			}, opts...))
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// allocations returns the mean number of allocations in a step on all ranks together. It returns 0
// on ranks other than 0.
func allocations(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator, s *steps) (uint64, error) {
	const runs = 10
	for range 5 { // until the cache knows all names, and tables have grown
		if err := s.step(ctx, co); err != nil {
			return 0, err
		}
	}
	var before, after runtime.MemStats
	if err := c.Barrier(ctx); err != nil {
		return 0, err
	}
	if c.Rank() == 0 {
		runtime.ReadMemStats(&before)
	}
	for range runs {
		if err := s.step(ctx, co); err != nil {
			return 0, err
		}
	}
	if c.Rank() > 0 {
		return 0, nil
	}
	runtime.ReadMemStats(&after)
	return (after.Mallocs - before.Mallocs) / runs, nil
}

// BenchmarkParts measures a step of large tensors that run in parts. Its allocs/op count the
// allocations of all ranks.
func BenchmarkParts(b *testing.B) {
	for _, wire := range []string{"memory", "tcp"} {
		b.Run(wire, func(b *testing.B) {
			// Each tensor has 16 parts.
			benchSteps(b, 2, wire, 8, 1<<18, coordinator.WithPartition(1<<16))
		})
	}
}

// BenchmarkModel measures a step with the gradients of a model. A few gradients are large, and many
// are small. The ranks are goroutines. It compares a coordinator, separate calls, and one call for
// a single vector. With GOMAXPROCS=1 it compares processor time.
func BenchmarkModel(b *testing.B) {
	sizes := []int{9408, 2_048_000} // numbers of elements, similar to ResNet-50, with fewer tensors
	for stage := range 4 {
		width := 64 << stage
		for range 3 {
			sizes = append(sizes, width, width, width, width, 4*width, 4*width, 4*width*width, 9*width*width, 4*width*width)
		}
	}
	for _, wire := range []string{"tcp", "shm"} {
		for _, way := range []string{"coordinator", "separate", "whole"} {
			b.Run(wire+"/"+way, func(b *testing.B) {
				err := comm.Local(4, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
					s := newModel(sizes)
					step := map[string]func() error{
						"coordinator": func() error { return s.step(ctx, co) },
						"separate":    func() error { return s.separate(ctx, c) },
						"whole":       func() error { return comm.AllReduce(ctx, c, s.all, comm.Sum) },
					}[way]
					for range 2 {
						if err := step(); err != nil {
							return err
						}
					}
					if err := c.Barrier(ctx); err != nil {
						return err
					}
					if c.Rank() == 0 {
						b.SetBytes(int64(4 * len(s.all)))
						b.ResetTimer()
					}
					for range b.N {
						if err := step(); err != nil {
							return err
						}
					}
					return nil
				}), comm.WithTransport(linked.All()...), comm.WithTransportName(wire))
				if err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}

// model runs steps with tensors that are parts of one vector.
type model struct {
	steps
	all []float32
}

func newModel(sizes []int) *model {
	m := new(model)
	total := 0
	for _, n := range sizes {
		total += n
	}
	m.all = make([]float32, total)
	at := 0
	for i, n := range sizes {
		m.names = append(m.names, fmt.Sprint("tensor", i))
		m.bufs = append(m.bufs, m.all[at:at+n:at+n])
		at += n
	}
	return m
}

func (m *model) separate(ctx context.Context, c *comm.Comm) error {
	for _, buf := range m.bufs {
		if err := comm.AllReduce(ctx, c, buf, comm.Sum); err != nil {
			return err
		}
	}
	return nil
}
