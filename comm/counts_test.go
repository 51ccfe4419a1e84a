package comm_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
)

// If the counts of sender and receiver differ, both ranks must get both calls, because only the
// program knows which of the two counts is wrong.
func TestCountsThatDifferBetweenRanksAreAMismatchOfBothCalls(t *testing.T) {
	verbs := map[string]func(ctx context.Context, c *comm.Comm, sent, received int) error{
		"alltoallv": func(ctx context.Context, c *comm.Comm, sent, received int) error {
			if c.Rank() == 1 {
				return comm.AllToAll(ctx, c, make([]float32, 1), comm.From(make([]float32, sent)), comm.Counts([]int{1, 0}), comm.SendCounts([]int{sent, 0}))
			}
			return comm.AllToAll(ctx, c, make([]float32, received), comm.From(make([]float32, 1)), comm.Counts([]int{0, received}), comm.SendCounts([]int{0, 1}))
		},
		"gatherv": func(ctx context.Context, c *comm.Comm, sent, received int) error {
			if c.Rank() == 1 {
				return comm.Gather(ctx, c, make([]float32, sent), 0, comm.Counts(nil))
			}
			return comm.Gather(ctx, c, make([]float32, received), 0, comm.Counts([]int{0, received}))
		},
		"scatterv": func(ctx context.Context, c *comm.Comm, sent, received int) error {
			if c.Rank() == 1 {
				return comm.Scatter(ctx, c, make([]float32, sent), 1, comm.Counts([]int{sent, 0}))
			}
			return comm.Scatter(ctx, c, make([]float32, received), 1, comm.Counts(nil))
		},
	}
	for name, call := range verbs {
		for _, n := range [][2]int{{4, 3}, {3, 4}, {100_000, 3}, {3, 100_000}, {61_440, 100_000}, {122_880, 61_440}} { // the numbers of elements sent and expected
			t.Run(fmt.Sprintf("%s/%d for %d", name, n[0], n[1]), func(t *testing.T) {
				errs := perRank(t, 2, func(ctx context.Context, c *comm.Comm) error {
					err := call(ctx, c, n[0], n[1])
					if err == nil { // the sender had returned before the mismatch was detected
						err = c.Barrier(ctx)
					}
					return err
				}, comm.WithParameters(comm.Parameters{NoSharedMemory: true}))
				for r, err := range errs {
					if !errors.Is(err, fault.Mismatch) || errors.Is(err, fault.Misuse) {
						t.Errorf("rank %d got %v, want a mismatch and no misuse", r, err)
					}
					if err != nil && strings.Count(err.Error(), "counts_test.go:") < 2 {
						t.Errorf("rank %d is not told both places: %v", r, err)
					}
				}
			})
		}
	}
}

func TestCountsOfARankForItselfThatDifferAreMisuse(t *testing.T) {
	errs := perRank(t, 2, func(ctx context.Context, c *comm.Comm) error {
		counts, other := []int{1, 1}, []int{1, 1}
		counts[c.Rank()], other[c.Rank()] = 2, 1
		err := comm.AllToAll(ctx, c, make([]int8, 2), comm.From(make([]int8, 3)), comm.Counts(other), comm.SendCounts(counts))
		if !errors.Is(err, fault.Misuse) {
			return fmt.Errorf("got %v, want misuse", err)
		}
		return c.Barrier(ctx) // the communicator is still usable
	})
	for r, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// If the bytes of the counts overflow, every rank that passes them must refuse the call before it
// sends anything. The same holds for a missing list of SendCounts and for a negative count. The
// communicator must stay usable.
func TestCountsThatOverflowAreMisuseOnEveryRank(t *testing.T) {
	const huge = 1 << 62
	errs := perRank(t, 3, func(ctx context.Context, c *comm.Comm) error {
		ok := comm.Counts([]int{1, 1, 1})
		for _, counts := range [][]int{{huge, 1, 1}, {1, huge, huge}, {huge, huge, huge}, {1, 1, -1}, {huge, huge + 3, huge}} {
			bad := comm.Counts(counts)
			mine, all := make([]int32, 1), make([]int32, 3)
			for name, err := range map[string]error{
				"allgather":                comm.AllGather(ctx, c, all, comm.From(mine), bad),
				"allgather in place":       comm.AllGather(ctx, c, all, bad),
				"gather":                   comm.Gather(ctx, c, all, 1, comm.From(mine), bad),
				"gather in place":          comm.Gather(ctx, c, all, 1, bad),
				"scatter":                  comm.Scatter(ctx, c, mine, 1, comm.From(all), bad),
				"scatter in place":         comm.Scatter(ctx, c, all, 1, bad),
				"reduce_scatter":           comm.ReduceScatter(ctx, c, mine, comm.Sum, comm.From(all), bad),
				"reduce_scatter in place":  comm.ReduceScatter(ctx, c, all, comm.Sum, bad),
				"alltoall":                 comm.AllToAll(ctx, c, all, comm.From(all), bad),
				"alltoall in place":        comm.AllToAll(ctx, c, all, bad),
				"alltoall, sends":          comm.AllToAll(ctx, c, all, ok, comm.SendCounts(counts)),
				"alltoall, none to send":   comm.AllToAll(ctx, c, all, ok, comm.SendCounts(nil)),
				"allgather and SendCounts": comm.AllGather(ctx, c, all, ok, comm.SendCounts(nil)),
			} {
				if !errors.Is(err, fault.Misuse) {
					return fmt.Errorf("%s with counts %v: got %v, want %v", name, counts, err, fault.Misuse)
				}
			}
		}
		return c.Barrier(ctx)
	})
	for r, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}
