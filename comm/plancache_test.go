package comm

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/reduce"
)

// The calls have vectors of the same number of bytes. Each differs from the others in one property
// that the cache key must include, so each must get a plan of its own.
func TestSimilarCallsHaveDistinctCachedPlans(t *testing.T) {
	grow := reduce.Func("grow", reduce.RankOrder, func(a, b int32) int32 { return a*b + b })
	err := Local(2, func(ctx context.Context, c *Comm) error {
		share := []int32{int32(c.Rank()) + 2, 5}
		root := func(r int) []int32 {
			buf := slices.Clone(share)
			if err := Broadcast(ctx, c, buf, r); err != nil {
				t.Errorf("broadcast from %d: %v", r, err)
			}
			return buf
		}
		all := func(op Op) []int32 {
			buf := slices.Clone(share)
			if err := AllReduce(ctx, c, buf, op); err != nil {
				t.Errorf("allreduce: %v", err)
			}
			return buf
		}
		for range 3 {
			for _, x := range []struct {
				name      string
				got, want []int32
			}{
				{"sum", all(Sum), []int32{5, 10}},
				{"max", all(Max), []int32{3, 5}},
				{"an operator of the program's", all(grow), []int32{9, 30}},
				{"from 0", root(0), []int32{2, 5}},
				{"from 1", root(1), []int32{3, 5}},
			} {
				if !slices.Equal(x.got, x.want) {
					t.Errorf("%s: rank %d got %v, want %v", x.name, c.Rank(), x.got, x.want)
				}
			}
			if err := AllReduce(ctx, c, slices.Clone(share), Mean); !errors.Is(err, fault.Misuse) {
				t.Errorf("a mean of integers: %v", err)
			}
			bits := []uint32{1, 1 << 31}
			if err := AllReduce(ctx, c, bits, Max); err != nil || bits[1] != 1<<31 {
				t.Errorf("the largest of unsigned numbers: %v, %v", bits, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// setTable must clear the plan cache, because the new table may choose other algorithms.
func TestSetTableClearsThePlanCache(t *testing.T) {
	err := Local(1, func(ctx context.Context, c *Comm) error {
		buf := []float32{1}
		if err := AllReduce(ctx, c, buf, Sum); err != nil {
			return err
		}
		first := c.planCache
		c.setTable(c.table)
		if c.planCache == first {
			t.Error("the algorithm of the old table is still remembered")
		}
		return AllReduce(ctx, c, buf, Sum)
	})
	if err != nil {
		t.Fatal(err)
	}
}
