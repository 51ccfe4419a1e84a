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
)

// rows returns the contribution of a rank. Rank 1 contributes no rows. The other ranks have some
// indexes in common.
func rows(rank, step int) coordinator.Sparse[float32] {
	s := coordinator.Sparse[float32]{Width: 2}
	if rank == 1 {
		return s
	}
	for i := range 3 + step {
		s.Indices = append(s.Indices, int64((7*i+rank)%5-1))
		s.Values = append(s.Values, float32(i)+0.1, float32(rank)/3)
	}
	return s
}

// plainRows adds the rows of all ranks, in rank order.
func plainRows(ranks, step int) (out coordinator.Sparse[float32]) {
	sums := make(map[int64][2]float32)
	for r := range ranks {
		s := rows(r, step)
		for i, at := range s.Indices {
			sum, known := sums[at]
			if !known {
				out.Indices = append(out.Indices, at)
				sums[at] = [2]float32{s.Values[2*i], s.Values[2*i+1]}
				continue
			}
			sums[at] = [2]float32{sum[0] + s.Values[2*i], sum[1] + s.Values[2*i+1]}
		}
	}
	slices.Sort(out.Indices)
	for _, at := range out.Indices {
		out.Values = append(out.Values, sums[at][0], sums[at][1])
	}
	return out
}

func TestSparseGradientsAreAddedByIndex(t *testing.T) {
	worlds(t, func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		for step := range 3 {
			want := plainRows(c.Size(), step)
			for _, op := range []comm.Op{comm.Sum, comm.Mean} {
				var got coordinator.Sparse[float32]
				if err := coordinator.AllReduceSparse(co, "embedding/"+op.Name(), &got, rows(c.Rank(), step), op).Wait(ctx); err != nil {
					return err
				}
				values := slices.Clone(want.Values)
				if op == comm.Mean {
					for i := range values {
						values[i] /= float32(c.Size())
					}
				}
				if err := errors.Join(equal("indices", got.Indices, want.Indices), equal(op.Name(), got.Values, values)); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func TestSparseGradientsGoInGroupsAndWithoutRanksThatHaveJoined(t *testing.T) {
	whileRank1HasJoined(t, func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		dense := vector(4, c.Rank())
		var h, sparse *coordinator.Handle
		var got coordinator.Sparse[float64]
		co.Group(func(g *coordinator.TensorGroup) {
			h = coordinator.AllReduce(g, "dense", dense, comm.Sum)
			sparse = coordinator.AllReduceSparse(g, "sparse", &got, coordinator.Sparse[float64]{Indices: []int64{5}, Values: []float64{3}, Width: 1}, comm.Mean)
		})
		<-sparse.Done()
		if err := errors.Join(sparse.Wait(ctx), h.Wait(ctx), equal("indices", got.Indices, []int64{5}), equal("mean", got.Values, []float64{3})); err != nil {
			return err
		}
		return nil
	})
}

func TestSparseGradientsThatCannotBeAreRefused(t *testing.T) {
	leak.Check(t)
	if err := comm.Local(1, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		good := coordinator.Sparse[float32]{Indices: []int64{1, 2}, Values: make([]float32, 4), Width: 2}
		short, flat := good, good
		short.Values, flat.Width = good.Values[:3], 0
		var got coordinator.Sparse[float32]
		for what, h := range map[string]*coordinator.Handle{
			"short":   coordinator.AllReduceSparse(co, "a", &got, short, comm.Sum),
			"no rows": coordinator.AllReduceSparse(co, "b", &got, flat, comm.Sum),
			"product": coordinator.AllReduceSparse(co, "c", &got, good, comm.Prod),
			"shape":   coordinator.AllReduceSparse(co, "d", &got, good, comm.Sum, coordinator.Shape(4)),
		} {
			if err := h.Wait(ctx); !errors.Is(err, fault.Misuse) {
				return fmt.Errorf("%s: got %v, want misuse", what, err)
			}
		}
		return nil
	})); err != nil {
		t.Error(err)
	}
}
