package collective

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/teamtest"
	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
)

func TestCallsThatCannotBeRightAreRefusedBeforeAnythingIsSent(t *testing.T) {
	sum, err := reduce.Sum.Kernel(tensor.Int32)
	if err != nil {
		t.Fatal(err)
	}
	buf := func(elems int) []byte { return tensor.Bytes(make([]int32, elems)) }
	pick := func(verb Verb) Algorithm { return selected(DefaultTable(), verb, 0, 3, true, false) }
	type call struct {
		name string
		do   func(ctx context.Context, r *p2p.Round) error
		want string
	}
	calls := []call{
		{"another verb's algorithm", func(ctx context.Context, r *p2p.Round) error {
			return AllReduce(ctx, r, pick(VerbReduce), buf(1), buf(1), sum)
		}, "got reduce:binomial, want one for allreduce"},
		{"no algorithm", func(ctx context.Context, r *p2p.Round) error {
			return Barrier(ctx, r, Algorithm{})
		}, "want one for barrier"},
		{"a zero kernel", func(ctx context.Context, r *p2p.Round) error {
			return ReduceScatter(ctx, r, pick(VerbReduceScatter), buf(1), buf(3), reduce.Kernel{})
		}, "operator: got none"},
	}
	tm := teamtest.New(t, 3, 0)
	for _, c := range calls {
		tm.Run(t, func(ctx context.Context, r *p2p.Round) error {
			if err := c.do(ctx, r); !errors.Is(err, fault.Misuse) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: got %v, want fault.Misuse that says %q", c.name, err, c.want)
			}
			return nil
		})
	}
	// The failed call must have sent nothing that a later round could receive, so the team must
	// still work.
	testCase{a: pick(VerbAllReduce), n: 3, count: 10}.run(t, tm)
}

func TestAlgorithmsThatFoldInAnotherOrderRefuseOperatorsThatDoNotCommute(t *testing.T) {
	k := provenanceKernel(t, reduce.RankOrder)
	tm := teamtest.New(t, 2, 0)
	refused := 0
	reducing(func(a Algorithm) {
		if a.SupportsOrder(reduce.RankOrder) {
			return
		}
		refused++
		tm.Run(t, func(ctx context.Context, r *p2p.Round) error {
			err := newFixture(2, r.Rank(), 1, k).call(ctx, r, a, 0)
			if !errors.Is(err, fault.Misuse) || !strings.Contains(err.Error(), "spell") || !strings.Contains(err.Error(), a.Name()) {
				t.Errorf("%v: got %v, want fault.Misuse that names both", a, err)
			}
			return nil
		})
	})
	if refused == 0 {
		t.Error("there is no such algorithm")
	}
}

// The input of AllGather lies in the result, at a position where the chunks of other ranks arrive.
// The result must be right all the same.
func TestAllGatherReadsItsChunkFromAnywhereInItsResult(t *testing.T) {
	const n, count = 4, 9 * p2p.SlotSize / 8
	tm := teamtest.StartAt(t, onHosts(n, 1), teamtest.SharedMemory, 0, teamtest.NoWrapper)
	for _, a := range Algorithms(VerbAllGather) {
		for at := 0; at <= (n-1)*count; at += count / 2 {
			tm.Run(t, func(ctx context.Context, r *p2p.Round) error {
				dst := make([]uint64, n*count)
				src := dst[at:][:count]
				for i := range src {
					src[i] = uint64(r.Rank()*count + i)
				}
				if err := AllGather(ctx, r, a, tensor.Bytes(dst), tensor.Bytes(src)); err != nil {
					return err
				}
				for i, got := range dst {
					if got != uint64(i) {
						return fmt.Errorf("%v, taken from element %d on: element %d is %d", a, at, i, got)
					}
				}
				return nil
			})
		}
	}
}
