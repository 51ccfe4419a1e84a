package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
)

// TestARankThatHasJoinedGivesNothingToAnyOperation compares the results of ranks 0 and 2 while rank
// 1 has joined. A rank contributes its rank plus 1, so the contributions are 1 and 3.
func TestARankThatHasJoinedGivesNothingToAnyOperation(t *testing.T) {
	type coord = *coordinator.Coordinator
	reduced := func(op comm.Op, want float64, count int, opts ...coordinator.CallOption) func(context.Context, coord) error {
		return func(ctx context.Context, co coord) error {
			buf := slices.Repeat([]float32{float32(co.Rank() + 1)}, count)
			if err := coordinator.AllReduce(co, "x", buf, op, opts...).Wait(ctx); err != nil {
				return err
			}
			return equal("x", buf, slices.Repeat([]float32{float32(want)}, count))
		}
	}
	misuse := func(h *coordinator.Handle, ctx context.Context) error {
		if err := h.Wait(ctx); !errors.Is(err, fault.Misuse) {
			return fmt.Errorf("got %v, want misuse", err)
		}
		return nil
	}
	for what, f := range map[string]func(context.Context, coord) error{
		"a sum":              reduced(comm.Sum, 4, 5),
		"a mean of two":      reduced(comm.Mean, 2, 5),
		"a product":          reduced(comm.Prod, 3, 5),
		"a minimum":          reduced(comm.Min, 1, 5),
		"a maximum":          reduced(comm.Max, 3, 5),
		"a large sum":        reduced(comm.Sum, 4, 300_000),
		"a sum in parts":     reduced(comm.Sum, 4, 2_100_000),
		"a scaled mean":      reduced(comm.Mean, 40, 5, coordinator.Scale(4, 5)),
		"a mean in float16":  reduced(comm.Mean, 2, 1000, coordinator.Compress(tensor.F16)),
		"a sum in bfloat16":  reduced(comm.Sum, 4, 70_000, coordinator.Compress(tensor.BF16)),
		"an urgent sum":      reduced(comm.Sum, 4, 5, coordinator.Priority(3)),
		"nothing at all":     reduced(comm.Sum, 4, 0),
		"a sum with a shape": reduced(comm.Sum, 4, 6, coordinator.Shape(2, 3)),
		"a group": func(ctx context.Context, co coord) error {
			a, b := []int{co.Rank()}, []int{10}
			var ha, hb *coordinator.Handle
			co.Group(func(g *coordinator.TensorGroup) {
				ha, hb = coordinator.AllReduce(g, "a", a, comm.Sum), coordinator.AllReduce(g, "b", b, comm.Sum)
			})
			return errors.Join(coordinator.WaitAll(ctx, ha, hb), equal("a", a, []int{2}), equal("b", b, []int{20}))
		},
		"a reduce-scatter": func(ctx context.Context, co coord) error { // rows 0 and 1, 2, 3
			lo, n := []int{0, 2, 3}[co.Rank()], []int{2, 1, 1}[co.Rank()]
			dst, src := make([]float64, n), []float64{1, 2, 3, 4}
			err := coordinator.ReduceScatter(co, "rs", dst, src, comm.Mean, coordinator.Scale(3, 1)).Wait(ctx)
			return errors.Join(err, equal("rs", dst, []float64{3, 6, 9, 12}[lo:lo+n]))
		},
		"an allgather": func(ctx context.Context, co coord) error {
			var got coordinator.Rows[int8]
			err := coordinator.AllGather(co, "g", &got, slices.Repeat([]int8{int8(co.Rank())}, co.Rank()+1)).Wait(ctx)
			return errors.Join(err, equal("g", got.Values, []int8{0, 2, 2, 2}), equal("rows", got.Counts, []int{1, 0, 3}))
		},
		"an alltoall": func(ctx context.Context, co coord) error { // the rows for the joined rank are lost
			var got coordinator.Rows[int]
			err := coordinator.AllToAll(co, "x", &got, []int{10 * co.Rank(), 5, 10*co.Rank() + 2}, []int{1, 1, 1}).Wait(ctx)
			return errors.Join(err, equal("x", got.Values, []int{co.Rank(), 20 + co.Rank()}), equal("rows", got.Counts, []int{1, 0, 1}))
		},
		"a broadcast": func(ctx context.Context, co coord) error {
			buf := []string{"zero", "", "two"}[co.Rank()]
			b := []byte(buf + "....")[:4]
			err := coordinator.Broadcast(co, "b", b, 2).Wait(ctx)
			return errors.Join(err, equal("b", b, []byte("two.")))
		},
		"a barrier": func(ctx context.Context, co coord) error { return coordinator.Barrier(co, "b").Wait(ctx) },
		"rows by index": func(ctx context.Context, co coord) error {
			s := coordinator.Sparse[float32]{Indices: []int64{int64(co.Rank()), 9}, Values: []float32{1, 2}, Width: 1}
			var got coordinator.Sparse[float32]
			err := coordinator.AllReduceSparse(co, "s", &got, s, comm.Sum).Wait(ctx)
			return errors.Join(err, equal("indices", got.Indices, []int64{0, 2, 9}), equal("values", got.Values, []float32{1, 1, 4}))
		},
		"a broadcast by the rank that has joined": func(ctx context.Context, co coord) error {
			return misuse(coordinator.Broadcast(co, "b", []int{1}, 1), ctx)
		},
		"an operator without identity": func(ctx context.Context, co coord) error {
			first := reduce.Func("first", reduce.RankOrder, func(a, b int32) int32 { return a })
			return misuse(coordinator.AllReduce(co, "f", []int32{1}, first), ctx)
		},
		"a new process set": func(ctx context.Context, co coord) error {
			if _, err := co.AddProcessSet(ctx, "s", 0); !errors.Is(err, fault.Misuse) {
				return fmt.Errorf("got %v, want misuse", err)
			}
			return nil
		},
	} {
		t.Run(what, func(t *testing.T) {
			whileRank1HasJoined(t, func(ctx context.Context, _ *comm.Comm, co *coordinator.Coordinator) error {
				for range 2 { // the second time the tensor may be in the cache
					if err := f(ctx, co); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}

func TestAMemberOfAProcessSetMayHaveJoined(t *testing.T) {
	leak.Check(t)
	err := comm.Local(4, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		set, err := co.AddProcessSet(ctx, "most", 3, 1, 0)
		if err != nil {
			return err
		}
		if c.Rank() == 0 || c.Rank() == 3 {
			buf, mean := []int{c.Rank()}, []float64{float64(c.Rank())}
			err := coordinator.WaitAll(ctx,
				coordinator.AllReduce(co, "w", buf, comm.Sum, coordinator.In(set)), coordinator.AllReduce(co, "m", mean, comm.Mean, coordinator.In(set)))
			if err != nil || buf[0] != 3 || mean[0] != 1.5 {
				return fmt.Errorf("got %v and %v, error %w", buf, mean, err)
			}
		}
		_, err = co.Join(ctx) // rank 2 is not a member, so it waits for nothing in the set
		return err
	}))
	if err != nil {
		t.Error(err)
	}
}
