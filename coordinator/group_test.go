package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
)

// TestRanksThatGroupDifferentlyAllGetAMismatchAtOnce lets rank 1 of three ranks submit groups that
// differ from the groups of the other ranks. The bubble's clock shows that no rank waits for a
// stall limit.
func TestRanksThatGroupDifferentlyAllGetAMismatchAtOnce(t *testing.T) {
	type call []string // tensors that are submitted together; a single tensor is not grouped
	for _, tc := range []struct {
		what   string
		others []call // of ranks 0 and 2
		rank1  []call
		want   []string // parts of every error
	}{
		{"another member", []call{{"a", "b"}}, []call{{"a", "c"}}, []string{"in a group of 2 with b at group_test.go", "in a group of 2 with c at group_test.go"}},
		{"one by one", []call{{"a", "b"}}, []call{{"a"}, {"b"}}, []string{"rank 1, last in allreduce a float64 [1] sum at"}},
		{"one by one, the last one only", []call{{"a", "b"}}, []call{{"b"}}, []string{"rank 1, last in allreduce b float64 [1] sum at"}},
		{"refused by itself", []call{{"a", "b"}}, []call{{"b"}, {"a", "b"}}, []string{"rank 1, last in allreduce b float64 [1] sum at"}},
		{"more members", []call{{"a", "b"}, {"c"}}, []call{{"a", "b", "c"}}, []string{"in a group of 2", "in a group of 3"}},
		{"without the invalid one", []call{{"a", "b"}}, []call{{"invalid", "b"}}, []string{"in a group of 1"}},
	} {
		t.Run(tc.what, func(t *testing.T) {
			leak.Check(t)
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				err := comm.Local(3, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
					calls := tc.others
					if c.Rank() == 1 {
						calls = tc.rank1
					}
					for range 2 { // the second time, after the groups have failed
						var hs []*coordinator.Handle
						for _, names := range calls {
							hs = append(hs, submitNames(co, names)...)
						}
						for _, h := range hs {
							err := h.Wait(ctx)
							if c.Rank() == 1 && errors.Is(err, fault.Misuse) {
								continue
							}
							if !errors.Is(err, fault.Mismatch) {
								return fmt.Errorf("got %v, want a mismatch", err)
							}
							for _, want := range append([]string{"rank 1, last in allreduce", "disagree about the group"}, tc.want...) {
								if !strings.Contains(err.Error(), want) {
									return fmt.Errorf("%q does not say %q", err, want)
								}
							}
						}
					}
					good := []float64{1}
					if err := coordinator.AllReduce(co, "good", good, comm.Sum).Wait(ctx); err != nil || good[0] != 3 {
						return fmt.Errorf("another tensor: got %v, %v", good, err)
					}
					return nil
				}))
				if elapsed := time.Since(began); err != nil || elapsed > time.Second {
					t.Errorf("after %v: %v", elapsed, err)
				}
			})
		})
	}
}

// submitNames submits tensors together. The tensor called "invalid" is refused.
func submitNames(co *coordinator.Coordinator, names []string) (hs []*coordinator.Handle) {
	if len(names) == 1 {
		return []*coordinator.Handle{coordinator.AllReduce(co, names[0], make([]float64, 1), comm.Sum)}
	}
	co.Group(func(g *coordinator.TensorGroup) {
		for _, name := range names {
			var opts []coordinator.CallOption
			if name == "invalid" {
				opts = append(opts, coordinator.Shape(2))
			}
			hs = append(hs, coordinator.AllReduce(g, name, make([]float64, 1), comm.Sum, opts...))
		}
	})
	return hs
}
