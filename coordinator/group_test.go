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

// submitNames submits tensors together.
func submitNames(co *coordinator.Coordinator, names []string) (hs []*coordinator.Handle) {
	if len(names) == 1 {
		return []*coordinator.Handle{coordinator.AllReduce(co, names[0], make([]float64, 1), comm.Sum)}
	}
	co.Group(func(g *coordinator.TensorGroup) {
		for _, name := range names {
			hs = append(hs, coordinator.AllReduce(g, name, make([]float64, 1), comm.Sum))
		}
	})
	return hs
}

// TestACallThatOneRankRefusesEndsOnTheOthers lets rank 1 of three ranks make a wrong call. The
// others get an error at once, which names rank 1 and what is wrong. Then all ranks use the same
// names again, rank 1 perhaps before the others have made the call.
func TestACallThatOneRankRefusesEndsOnTheOthers(t *testing.T) {
	type calls func(co *coordinator.Coordinator, odd *coordinator.ProcessSet) []*coordinator.Handle
	group := func(add func(g *coordinator.TensorGroup, odd *coordinator.ProcessSet) []*coordinator.Handle) calls {
		return func(co *coordinator.Coordinator, odd *coordinator.ProcessSet) (hs []*coordinator.Handle) {
			co.Group(func(g *coordinator.TensorGroup) { hs = add(g, odd) })
			return hs
		}
	}
	reduce := func(to coordinator.Submitter, name string, opts ...coordinator.CallOption) *coordinator.Handle {
		return coordinator.AllReduce(to, name, make([]float64, 1), comm.Sum, opts...)
	}
	two := group(func(g *coordinator.TensorGroup, _ *coordinator.ProcessSet) []*coordinator.Handle {
		return []*coordinator.Handle{reduce(g, "a"), reduce(g, "b")}
	})
	wait := func(hs ...*coordinator.Handle) {
		if err := coordinator.WaitAll(context.Background(), hs...); err != nil {
			t.Error(err)
		}
	}
	twice := func(between func(h *coordinator.Handle)) calls {
		return func(co *coordinator.Coordinator, _ *coordinator.ProcessSet) []*coordinator.Handle {
			h := coordinator.Declare(co, "a", make([]float64, 1), comm.Sum)
			h.Submit()
			between(h)
			h.Submit()
			return []*coordinator.Handle{h}
		}
	}
	sparse := func(width int) calls {
		return func(co *coordinator.Coordinator, _ *coordinator.ProcessSet) []*coordinator.Handle {
			var dst coordinator.Sparse[float64]
			return []*coordinator.Handle{coordinator.AllReduceSparse(co, "s", &dst, coordinator.Sparse[float64]{Width: width}, comm.Sum)}
		}
	}
	for _, tc := range []struct {
		what         string
		right, wrong calls
		want         string // part of every error of ranks 0 and 2
		// others says that the wrong call has other tensors than the right one. Only calls of the
		// same tensors belong together, so rank 1 must not go ahead.
		others bool
	}{
		{what: "a shape", right: two, wrong: group(func(g *coordinator.TensorGroup, _ *coordinator.ProcessSet) []*coordinator.Handle {
			return []*coordinator.Handle{reduce(g, "a"), reduce(g, "b", coordinator.Shape(2))}
		}), want: "got 1 elements, want 2"},
		{what: "every tensor", right: two, wrong: group(func(g *coordinator.TensorGroup, _ *coordinator.ProcessSet) []*coordinator.Handle {
			return []*coordinator.Handle{reduce(g, "a", coordinator.Shape(2)), reduce(g, "b", coordinator.Shape(3))}
		}), want: "got 1 elements, want 2"},
		{what: "the wrong one has another name", others: true, right: two, wrong: group(func(g *coordinator.TensorGroup, _ *coordinator.ProcessSet) []*coordinator.Handle {
			return []*coordinator.Handle{reduce(g, "c", coordinator.Shape(2)), reduce(g, "b")}
		}), want: "got 1 elements, want 2"},
		{what: "process sets", others: true, right: two, wrong: group(func(g *coordinator.TensorGroup, odd *coordinator.ProcessSet) []*coordinator.Handle {
			return []*coordinator.Handle{reduce(g, "a"), reduce(g, "b", coordinator.In(odd))}
		}), want: "different process sets"},
		{what: "one tensor twice", others: true, right: two, wrong: group(func(g *coordinator.TensorGroup, _ *coordinator.ProcessSet) []*coordinator.Handle {
			return []*coordinator.Handle{reduce(g, "a"), reduce(g, "a")}
		}), want: "is in flight"},
		{what: "a single tensor",
			right: func(co *coordinator.Coordinator, _ *coordinator.ProcessSet) []*coordinator.Handle {
				return []*coordinator.Handle{reduce(co, "a")}
			},
			wrong: func(co *coordinator.Coordinator, _ *coordinator.ProcessSet) []*coordinator.Handle {
				return []*coordinator.Handle{reduce(co, "a", coordinator.Shape(2))}
			}, want: "got 1 elements, want 2"},
		{what: "rows", right: sparse(2), wrong: sparse(0), want: "want a width of at least 1"},
		{what: "a handle twice", right: twice(func(h *coordinator.Handle) { wait(h) }), wrong: twice(func(*coordinator.Handle) {}), want: "before Wait had returned"},
		{what: "a grouped handle",
			right: func(co *coordinator.Coordinator, odd *coordinator.ProcessSet) []*coordinator.Handle {
				wait(two(co, odd)...)
				return []*coordinator.Handle{reduce(co, "a")}
			},
			wrong: func(co *coordinator.Coordinator, odd *coordinator.ProcessSet) []*coordinator.Handle {
				hs := two(co, odd)
				wait(hs...)
				hs[0].Submit()
				return hs[:1]
			}, want: "submit it in a new group"},
		{what: "a handle of rows",
			right: func(co *coordinator.Coordinator, odd *coordinator.ProcessSet) []*coordinator.Handle {
				wait(sparse(2)(co, odd)...)
				return sparse(2)(co, odd)
			},
			wrong: func(co *coordinator.Coordinator, odd *coordinator.ProcessSet) []*coordinator.Handle {
				hs := sparse(2)(co, odd)
				wait(hs...)
				hs[0].Submit()
				return hs
			}, want: "submit it in a new group"},
	} {
		t.Run(tc.what, func(t *testing.T) {
			leak.Check(t)
			synctest.Test(t, func(t *testing.T) {
				err := comm.Local(3, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
					odd, err := co.AddProcessSet(ctx, "odd", 1)
					if err != nil {
						return err
					}
					began, call := time.Now(), tc.right
					if c.Rank() == 1 {
						call = tc.wrong
					}
					for _, h := range call(co, odd) {
						err := h.Wait(ctx)
						if c.Rank() == 1 {
							if !errors.Is(err, fault.Misuse) {
								return fmt.Errorf("rank 1: got %v, want misuse", err)
							}
							continue
						}
						if !errors.Is(err, fault.Mismatch) {
							return fmt.Errorf("got %v, want a mismatch", err)
						}
						for _, want := range []string{"[rank 1, last in ", "group_test.go:", "has refused its call", tc.want} {
							if !strings.Contains(err.Error(), want) {
								return fmt.Errorf("%q does not say %q", err, want)
							}
						}
					}
					if elapsed := time.Since(began); elapsed > 100*time.Millisecond {
						return fmt.Errorf("the call ended after %v, want it at once", elapsed)
					}
					if tc.others {
						if err := c.Barrier(ctx); err != nil {
							return err
						}
					}
					for range 2 {
						if err := coordinator.WaitAll(ctx, tc.right(co, odd)...); err != nil {
							return fmt.Errorf("the same names again: %w", err)
						}
					}
					return nil
				}))
				if err != nil {
					t.Error(err)
				}
			})
		})
	}
}
