package elastic

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
)

// errDies is the error that ends one rank in a test. The rank leaves Run and closes.
var errDies = errors.New("this rank dies")

// A world is the source of a rank that comm.Local has started. The process may begin as a member,
// or wait until the members let it join.
type world struct {
	environment
	*joins
	base     *comm.Comm // the communicator of all processes
	begins   int        // ranks of base below begins are members at first; 0: all are
	complete bool       // the processes that waited have joined
}

// joins is shared by all processes of a test. It shows when a process waits to join, and when it
// may join.
type joins struct {
	waiting, admitted     chan struct{} // closed when a process waits; closed when the members let it join
	closeWait, closeAdmit sync.Once
}

func (w *world) first(ctx context.Context) (*comm.Comm, error) {
	if w.begins == 0 {
		w.job = w.base
		return w.base, nil
	}
	if w.base.Rank() >= w.begins {
		w.closeWait.Do(func() { close(w.waiting) })
		select {
		case <-w.admitted:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		return w.all(ctx)
	}
	members := make([]int, w.begins)
	for i := range members {
		members[i] = i
	}
	return w.base.Sub(ctx, members...)
}

func (w *world) next(ctx context.Context, c *comm.Comm) (*comm.Comm, error) {
	if w.begins > 0 && !w.complete {
		w.closeAdmit.Do(func() { close(w.admitted) })
		return w.all(ctx)
	}
	return w.environment.next(ctx, c)
}

// all returns a communicator of the processes that are left.
func (w *world) all(ctx context.Context) (*comm.Comm, error) {
	w.complete = true
	return w.base.Shrink(ctx)
}

func (w *world) changed(*comm.Comm) <-chan struct{} {
	switch {
	case w.begins == 0:
		return nil
	case w.complete:
		return make(chan struct{})
	}
	return w.waiting
}

func (w *world) close(context.Context, *comm.Comm) error { return nil } // comm.Local closes

// runAll calls Run on n ranks and checks that each rank gets an error that want accepts. A rank
// that returns errDies closes, and the other ranks go on.
func runAll(t *testing.T, n, begins int, want func(rank int, err error) error, rank func(r int) (State, func(context.Context, *Job) error, []Option)) {
	t.Helper()
	leak.Check(t)
	j := &joins{waiting: make(chan struct{}), admitted: make(chan struct{})}
	err := comm.Local(n, func(ctx context.Context, c *comm.Comm) error {
		state, train, opts := rank(c.Rank())
		var o options
		for _, opt := range opts {
			opt(&o)
		}
		err := run(ctx, &world{base: c, begins: begins, joins: j}, state, train, o)
		if errors.Is(err, errDies) {
			return nil
		}
		return want(c.Rank(), err)
	}, comm.WithTimeout(20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
}

// success accepts nil only.
func success(rank int, err error) error {
	if err != nil {
		return fmt.Errorf("rank %d: %w", rank, err)
	}
	return nil
}

// wantKind accepts an error of the kind on every rank.
func wantKind(k fault.Kind) func(int, error) error {
	return func(rank int, err error) error {
		if !errors.Is(err, k) {
			return fmt.Errorf("rank %d: got %v, want %v", rank, err, k)
		}
		return nil
	}
}

// counting is a State that counts the calls of Restore.
type counting struct {
	State
	restored *int
}

func (s counting) Restore() error {
	*s.restored++
	return s.State.Restore()
}

// average returns the mean of v over the ranks.
func average(ctx context.Context, c *comm.Comm, v float64) (float64, error) {
	buf := []float64{v}
	err := comm.AllReduce(ctx, c, buf, comm.Mean)
	return buf[0], err
}

func TestStepsAreRepeatedWithoutRollback(t *testing.T) {
	const steps = 10
	deaths := map[int]int{1: 3, 0: 6} // rank: step
	var left atomic.Int32
	runAll(t, 4, 0, func(rank int, err error) error {
		left.Add(1)
		return success(rank, err)
	}, func(rank int) (State, func(context.Context, *Job) error, []Option) {
		sum, step, restored, computed := []float64{0}, 0, 0, 0
		state := counting{States(Tensors(sum), Values(&step)), &restored}
		return state, func(ctx context.Context, job *Job) error {
			for step < steps {
				var got float64
				err := job.Step(ctx, func(ctx context.Context) (err error) {
					computed++
					if at, dies := deaths[rank]; dies && at == step {
						return errDies
					}
					got, err = average(ctx, job.Comm(), float64(step))
					return err
				}, func() {
					sum[0] += got
					step++
				})
				if err != nil {
					return err
				}
			}
			if sum[0] != steps*(steps-1)/2 || restored != 0 || computed > steps+len(deaths) || job.Resets() != 2 || job.Comm().Size() != 2 {
				return fmt.Errorf("sum %v, %d restores, %d steps computed, %d resets, %d ranks; want 45, 0, at most 12, 2, 2",
					sum[0], restored, computed, job.Resets(), job.Comm().Size())
			}
			return nil
		}, nil
	})
	if left.Load() != 2 {
		t.Errorf("got %d ranks at the end, want 2", left.Load())
	}
}

func TestWithoutStepALossRollsBackToTheLastCommit(t *testing.T) {
	runAll(t, 3, 0, success, func(rank int) (State, func(context.Context, *Job) error, []Option) {
		var done []int // the steps that this rank has made, repeated ones included
		sum, step := []float64{0}, 0
		return States(Tensors(sum), Values(&step)), func(ctx context.Context, job *Job) error {
			for step < 12 {
				if rank == 2 && step == 7 {
					return errDies
				}
				got, err := average(ctx, job.Comm(), float64(step))
				if err != nil {
					sum[0] = -1e9 // a half-changed state must not survive
					return err
				}
				sum[0] += got
				done = append(done, step)
				step++
				if step%5 == 0 {
					if err := job.Commit(ctx); err != nil {
						return err
					}
				}
			}
			if want := []int{0, 1, 2, 3, 4, 5, 6, 5, 6, 7, 8, 9, 10, 11}; sum[0] != 66 || !slices.Equal(done, want) {
				return fmt.Errorf("sum %v after steps %v, want 66 after %v", sum[0], done, want)
			}
			return nil
		}, nil
	})
}

// Ranks make different numbers of Commits before one of them revokes the communicator. All of them
// must begin the next attempt with the state of the lowest rank that has committed most.
func TestAllRanksGetTheStateOfTheRankThatIsFurthest(t *testing.T) {
	commits := []int{1, 0, 3, 3, 2}
	runAll(t, len(commits), 0, success, func(rank int) (State, func(context.Context, *Job) error, []Option) {
		v, name := []int{-1}, -1
		return States(Tensors(v), Values(&name)), func(ctx context.Context, job *Job) error {
			if job.Resets() > 0 {
				if v[0] != 2 || name != 2 {
					return fmt.Errorf("got the state %d, %d of a rank, want that of rank 2", v[0], name)
				}
				return nil
			}
			for range commits[rank] {
				v[0], name = rank, rank
				if err := job.Commit(ctx); err != nil {
					return err
				}
			}
			if err := job.Comm().Barrier(ctx); err != nil {
				return err
			}
			v[0], name = 100, 100 // not committed
			if rank == 0 {
				job.Comm().Revoke()
			}
			return job.Comm().Barrier(ctx)
		}, nil
	})
}

// failing is a State whose Commit fails once: the first time that the function fails returns true.
type failing struct {
	State
	fails func() bool
	done  *bool
}

func (s failing) Commit() error {
	if !*s.done && s.fails() {
		*s.done = true
		return fault.New(fault.PeerLost, "commit", -1, "the neighbour that keeps the copy is lost")
	}
	return s.State.Commit()
}

// A rank whose Commit has failed has the copy of the Commit before. That copy must not win against
// the states of ranks that have committed.
func TestACommitThatHasFailedIsNoProgress(t *testing.T) {
	var others sync.WaitGroup // done when the other ranks have made their second Commits
	others.Add(2)
	runAll(t, 3, 0, success, func(rank int) (State, func(context.Context, *Job) error, []Option) {
		v, done := []int{0}, rank != 0
		state := failing{Tensors(v), func() bool {
			if v[0] < 2 {
				return false
			}
			others.Wait()
			return true
		}, &done}
		return state, func(ctx context.Context, job *Job) error {
			if job.Resets() > 0 {
				if v[0] != 2 {
					return fmt.Errorf("got the state %d, want 2 as ranks 1 and 2 have committed", v[0])
				}
				return nil
			}
			for range 2 {
				v[0]++
				if err := job.Commit(ctx); err != nil {
					return err
				}
			}
			if rank != 0 {
				others.Done()
			}
			return job.Comm().Barrier(ctx)
		}, nil
	})
}

func TestAWaitingProcessJoinsAtACommit(t *testing.T) {
	const steps = 1000
	runAll(t, 3, 2, success, func(rank int) (State, func(context.Context, *Job) error, []Option) {
		v, step := []int{0}, 0
		callbacks, calls := 0, 0
		return States(Tensors(v), Values(&step)), func(ctx context.Context, job *Job) error {
				calls++
				if rank == 2 && (calls != 1 || job.Resets() != 1 || step == 0) {
					return fmt.Errorf("call %d after %d resets at step %d, want the first call, after 1 reset, in the middle", calls, job.Resets(), step)
				}
				if callbacks != job.Resets() {
					return fmt.Errorf("got %d callbacks after %d resets", callbacks, job.Resets())
				}
				for step < steps || job.Comm().Size() < 3 {
					one := []int{1}
					if err := comm.AllReduce(ctx, job.Comm(), one, comm.Max); err != nil {
						return err
					}
					v[0] += one[0]
					step++
					if err := job.Commit(ctx); err != nil {
						return err
					}
				}
				if v[0] != step {
					return fmt.Errorf("got %d after %d steps", v[0], step)
				}
				return nil
			}, []Option{WithOnReset(func(ctx context.Context, job *Job) error {
				callbacks++
				if job.Comm().Size() != 3 || step == 0 {
					return fmt.Errorf("callback with %d ranks at step %d, want 3 and the state of the others", job.Comm().Size(), step)
				}
				return nil
			})}
	})
}

// Rank 1 is done while the others have failed in the last step. It must take part in another
// attempt, which gives the other ranks the state of rank 1.
func TestARankThatIsDoneGivesItsStateToTheOthers(t *testing.T) {
	runAll(t, 3, 0, success, func(rank int) (State, func(context.Context, *Job) error, []Option) {
		step, calls := 0, 0
		return Values(&step), func(ctx context.Context, job *Job) error {
			calls++
			if step == 5 {
				if job.Resets() != 1 || calls != 2 {
					return fmt.Errorf("call %d after %d resets, want the second after 1", calls, job.Resets())
				}
				return nil
			}
			if err := job.Comm().Barrier(ctx); err != nil {
				return err
			}
			if rank == 1 {
				return job.Step(ctx, func(context.Context) error { return nil }, func() { step = 5 })
			}
			job.Comm().Revoke()
			return job.Comm().Barrier(ctx)
		}, nil
	})
}

func TestErrorsThatMustNotBeRetried(t *testing.T) {
	own := errors.New("the disk is full")
	for _, c := range []struct {
		name string
		err  error         // of rank 1's first call of train
		want [3]fault.Kind // of each rank; 0 for success
	}{
		{"misuse aborts", fault.New(fault.Misuse, "test", 1, "wrong"), [3]fault.Kind{fault.Misuse, fault.Misuse, fault.Misuse}},
		{"mismatch aborts", fault.New(fault.Mismatch, "test", 1, "differs"), [3]fault.Kind{fault.Mismatch, fault.Mismatch, fault.Mismatch}},
		{"exhausted leaves", fault.New(fault.Exhausted, "test", 1, "full"), [3]fault.Kind{0, fault.Exhausted, 0}},
		{"own close leaves", fault.New(fault.Closed, "test", 1, "closed here"), [3]fault.Kind{0, fault.Closed, 0}},
		{"its own leaves", own, [3]fault.Kind{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			runAll(t, 3, 0, func(rank int, err error) error {
				switch {
				case c.want[rank] != 0:
					return wantKind(c.want[rank])(rank, err)
				case rank == 1 && !errors.Is(err, own):
					return fmt.Errorf("got %v, want %v", err, own)
				case rank != 1:
					return success(rank, err)
				}
				return nil
			}, func(rank int) (State, func(context.Context, *Job) error, []Option) {
				calls := 0
				return States(), func(ctx context.Context, job *Job) error {
					if calls++; rank == 1 {
						if calls > 1 {
							return errors.New("train was called again")
						}
						return c.err
					}
					return job.Comm().Barrier(ctx)
				}, nil
			})
		})
	}
}

// Rank 2 calls another collective than the other ranks. Run must return the mismatch that the
// library reports, after one call of train on each rank.
func TestAMismatchBetweenRanksEndsRunOnAllOfThem(t *testing.T) {
	var calls atomic.Int32
	runAll(t, 3, 0, wantKind(fault.Mismatch), func(rank int) (State, func(context.Context, *Job) error, []Option) {
		return States(), func(ctx context.Context, job *Job) error {
			calls.Add(1)
			if rank == 2 {
				return job.Comm().Barrier(ctx)
			}
			_, err := average(ctx, job.Comm(), 1)
			return err
		}, nil
	})
	if calls.Load() != 3 {
		t.Errorf("train was called %d times on 3 ranks, want once on each", calls.Load())
	}
}

func TestAnErrorThatRepeatsWithNobodyLostEndsRun(t *testing.T) {
	var calls atomic.Int32
	runAll(t, 3, 0, wantKind(fault.Exhausted), func(rank int) (State, func(context.Context, *Job) error, []Option) {
		v := 0
		return Values(&v), func(ctx context.Context, job *Job) error {
			calls.Add(1)
			if err := job.Comm().Barrier(ctx); err != nil {
				return err
			}
			if rank == 1 {
				job.Comm().Revoke()
			}
			return job.Comm().Barrier(ctx)
		}, nil
	})
	if got, want := calls.Load(), int32(3*maxSame); got != want {
		t.Errorf("train was called %d times, want %d", got, want)
	}
}

// Every second attempt makes progress, so no two resets in a row are without progress. Run must
// allow all of them.
func TestProgressAllowsFurtherResets(t *testing.T) {
	runAll(t, 2, 0, success, func(rank int) (State, func(context.Context, *Job) error, []Option) {
		v := 0
		return Values(&v), func(ctx context.Context, job *Job) error {
			if job.Resets() == 6 {
				return nil
			}
			if job.Resets()%2 == 1 {
				if err := job.Commit(ctx); err != nil {
					return err
				}
			}
			if err := job.Comm().Barrier(ctx); err != nil {
				return err
			}
			job.Comm().Revoke()
			return job.Comm().Barrier(ctx)
		}, nil
	})
}

func TestTheNumberOfResetsIsLimited(t *testing.T) {
	var calls atomic.Int32
	runAll(t, 2, 0, wantKind(fault.Exhausted), func(rank int) (State, func(context.Context, *Job) error, []Option) {
		v := 0
		return Values(&v), func(ctx context.Context, job *Job) error {
			calls.Add(1)
			if err := job.Commit(ctx); err != nil {
				return err
			}
			if err := job.Comm().Barrier(ctx); err != nil {
				return err
			}
			job.Comm().Revoke()
			return job.Comm().Barrier(ctx)
		}, []Option{WithMaxResets(4)}
	})
	if got := calls.Load(); got != 2*5 {
		t.Errorf("train was called %d times on 2 ranks, want 5 times on each", got)
	}
}

// fragile is a State whose Sync first calls the function before, and fails if before fails. By then
// other ranks may have received other parts of the state.
type fragile struct {
	State
	before func() error
}

func (s fragile) Sync(ctx context.Context, c *comm.Comm, root int) error {
	if err := s.before(); err != nil {
		return err
	}
	return s.State.Sync(ctx, c, root)
}

// The root of a Sync dies when it has sent the first of two tensors. The other ranks must go on
// from the progress that they have made themselves.
func TestARootThatDiesInSyncCostsOnlyItsOwnProgress(t *testing.T) {
	runAll(t, 3, 0, success, func(rank int) (State, func(context.Context, *Job) error, []Option) {
		a, b, step := []int{0}, []int{0}, 0
		syncs := 0
		state := States(Values(&step), Tensors(a), fragile{Tensors(b), func() error {
			if syncs++; rank == 0 && syncs == 2 {
				return errDies
			}
			return nil
		}})
		return state, func(ctx context.Context, job *Job) error {
			if job.Resets() == 0 {
				steps := 2
				if rank == 0 {
					steps = 3 // so it is the next root
				}
				for range steps {
					if err := job.Step(ctx, func(context.Context) error { return nil }, func() {
						step++
						a[0], b[0] = step, step
					}); err != nil {
						return err
					}
				}
				job.Comm().Revoke()
				return job.Comm().Barrier(ctx)
			}
			if step != 2 || a[0] != 2 || b[0] != 2 || job.Resets() != 2 {
				return fmt.Errorf("step %d with %d and %d after %d resets, want 2 with 2 and 2 after 2", step, a[0], b[0], job.Resets())
			}
			return nil
		}, nil
	})
}

// The training function makes a coordinator with a process set, and closes it at its end. When a
// rank dies, the next attempt must work with a new coordinator on the new communicator.
func TestACoordinatorWithAProcessSetIsMadeForEachAttempt(t *testing.T) {
	const steps = 6
	runAll(t, 4, 0, success, func(rank int) (State, func(context.Context, *Job) error, []Option) {
		sum, step := []float64{0}, 0
		return States(Tensors(sum), Values(&step)), func(ctx context.Context, job *Job) error {
			c := job.Comm()
			co, err := coordinator.Start(ctx, c)
			if err != nil {
				return err
			}
			defer co.Close(ctx)
			set, err := co.AddProcessSet(ctx, "ends", 0, c.Size()-1)
			if err != nil {
				return err
			}
			for step < steps {
				g := []float64{float64(step)}
				ends := []float64{1}
				if err := job.Step(ctx, func(ctx context.Context) error {
					if rank == 1 && step == 3 {
						return errDies
					}
					h := []*coordinator.Handle{coordinator.AllReduce(co, "g", g, comm.Mean)}
					if c.Rank() == 0 || c.Rank() == c.Size()-1 {
						h = append(h, coordinator.AllReduce(co, "ends", ends, comm.Sum, coordinator.In(set)))
					}
					return coordinator.WaitAll(ctx, h...)
				}, func() {
					sum[0] += g[0]
					step++
				}); err != nil {
					return err
				}
				if want := 2.0; (c.Rank() == 0 || c.Rank() == c.Size()-1) && ends[0] != want {
					return fmt.Errorf("process set: got %v, want %v", ends[0], want)
				}
			}
			if sum[0] != 15 || c.Size() != 3 {
				return fmt.Errorf("got %v with %d ranks, want 15 with 3", sum[0], c.Size())
			}
			return nil
		}, nil
	})
}

// The context ends while one rank waits for the other rank. Run must end with context.Canceled on
// both ranks.
func TestTheContextEndsRun(t *testing.T) {
	leak.Check(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := comm.Local(2, func(_ context.Context, c *comm.Comm) error {
		err := run(ctx, &world{base: c}, States(), func(ctx context.Context, job *Job) error {
			if err := job.Comm().Barrier(ctx); err != nil {
				return err
			}
			if c.Rank() == 0 {
				cancel()
				return ctx.Err()
			}
			return job.Comm().Barrier(ctx)
		}, options{})
		if !errors.Is(err, context.Canceled) {
			return fmt.Errorf("rank %d: got %v, want %v", c.Rank(), err, context.Canceled)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A job of one rank needs no other rank to go on. But its context has ended, so Run must not make a
// second attempt.
func TestNoAttemptBeginsAfterTheEndOfTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	err := Run(ctx, States(), func(ctx context.Context, job *Job) error {
		calls++
		cancel()
		job.Comm().Revoke()
		return job.Comm().Barrier(t.Context())
	})
	if !errors.Is(err, fault.Canceled) || calls != 1 {
		t.Errorf("got %v after %d calls, want %v after 1", err, calls, fault.Canceled)
	}
}

// Rank 0 waits for a message of rank 1, and rank 1 for rank 2, which dies. The loss must reach rank
// 0, although the rank for which it waits is alive.
func TestALossReachesARankThatWaitsForALiveRank(t *testing.T) {
	begin := time.Now()
	runAll(t, 3, 0, success, func(rank int) (State, func(context.Context, *Job) error, []Option) {
		return States(), func(ctx context.Context, job *Job) error {
			if job.Comm().Size() == 2 {
				return nil
			}
			if rank == 2 {
				return errDies
			}
			_, err := comm.Recv(ctx, job.Comm(), rank+1, 0, make([]int, 1))
			return err
		}, nil
	})
	if d := time.Since(begin); d > 5*time.Second {
		t.Errorf("it took %v, want at most 5 s", d)
	}
}

func TestDecide(t *testing.T) {
	lost := func(k fault.Kind, cause error) error {
		return &fault.Error{Kind: k, Peers: []fault.Peer{{Rank: 1}}, Err: cause}
	}
	for _, c := range []struct {
		err  error
		want decision
	}{
		{nil, done},
		{lost(fault.PeerLost, nil), again},
		{lost(fault.LinkLost, nil), again},
		{lost(fault.Closed, nil), again},
		{lost(fault.Revoked, nil), again},
		{lost(fault.Revoked, lost(fault.PeerLost, nil)), again},
		{lost(fault.PeerLost, context.DeadlineExceeded), again},
		{fmt.Errorf("step 3: %w", lost(fault.PeerLost, nil)), again},
		{fmt.Errorf("step 3: %w", ErrHostsUpdated), again},
		{fault.New(fault.Closed, "test", 0, "this rank"), stop},
		{lost(fault.Revoked, lost(fault.Timeout, nil)), again},
		{lost(fault.Revoked, lost(fault.Exhausted, nil)), stop},
		{lost(fault.Revoked, lost(fault.Mismatch, nil)), stop}, // the ranks that differ abort
		{lost(fault.PeerLost, lost(fault.Misuse, nil)), stop},  // rank 1 has aborted
		{lost(fault.Timeout, context.DeadlineExceeded), again},
		{lost(fault.NoQuorum, nil), stop},
		{lost(fault.Refused, nil), stop},
		{errors.New("the disk is full"), stop},
		{lost(fault.Misuse, nil), abort},
		{lost(fault.Mismatch, nil), abort},
	} {
		if got := decide(c.err); got != c.want {
			t.Errorf("%v: got %d, want %d", c.err, got, c.want)
		}
	}
}

func TestRunRefusesWrongArguments(t *testing.T) {
	train := func(context.Context, *Job) error { return nil }
	for name, err := range map[string]error{
		"context": Run(nil, States(), train), //lint:ignore SA1012 the test is about nil
		"state":   Run(t.Context(), nil, train),
		"train":   Run(t.Context(), States(), nil),
		"resets":  Run(t.Context(), States(), train, WithMaxResets(-1)),
	} {
		if !errors.Is(err, fault.Misuse) {
			t.Errorf("%s: got %v, want %v", name, err, fault.Misuse)
		}
	}
}

// A process without a launcher is a job of one rank. Run must train it to the end.
func TestRunOfASingleProcess(t *testing.T) {
	step := 0
	err := Run(t.Context(), Values(&step), func(ctx context.Context, job *Job) error {
		for step < 3 {
			step++
			if err := job.Commit(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || step != 3 {
		t.Errorf("got %v after %d steps, want success after 3", err, step)
	}
}

// Ranks die at random calls of the function pass. The result must equal the result of a run without
// deaths.
func TestRandomDeathsDoNotChangeTheResult(t *testing.T) {
	rounds := 20
	if soaking() {
		rounds = 2000
	}
	for seed := range uint64(rounds) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { randomDeaths(t, seed) })
	}
}

func randomDeaths(t *testing.T, seed uint64) {
	draw := rand.New(rand.NewPCG(seed, 0))
	n := 3 + draw.IntN(4)
	steps, every := 5+draw.IntN(20), 1+draw.IntN(6)
	withStep := draw.IntN(2) == 0
	// Rank r dies in call number dies[r] of its function pass. It does not die if dies[r] is 0.
	dies := make([]int, n)
	for r := range dies {
		if draw.IntN(2) == 0 {
			dies[r] = 1 + draw.IntN(3*steps)
		}
	}
	dies[draw.IntN(n)] = 0
	runAll(t, n, 0, success, func(rank int) (State, func(context.Context, *Job) error, []Option) {
		passed := 0
		pass := func() error {
			if passed++; passed == dies[rank] {
				return errDies
			}
			return nil
		}
		sum, step := []float64{0}, 0
		state := States(Tensors(sum), fragile{Values(&step), pass})
		return state, func(ctx context.Context, job *Job) error {
			for step < steps {
				var got float64
				compute := func(ctx context.Context) (err error) {
					if err := pass(); err != nil {
						return err
					}
					if got, err = average(ctx, job.Comm(), float64(step)); err != nil {
						return err
					}
					return pass()
				}
				apply := func() { sum[0], step = sum[0]+got, step+1 }
				if withStep {
					if err := job.Step(ctx, compute, apply); err != nil {
						return err
					}
				} else {
					sum[0]++ // an error leaves the state changed
					if err := compute(ctx); err != nil {
						return err
					}
					sum[0]--
					apply()
				}
				if step%every == 0 {
					if err := job.Commit(ctx); err != nil {
						return err
					}
				}
			}
			if want := float64(steps * (steps - 1) / 2); sum[0] != want {
				return fmt.Errorf("got %v, want %v", sum[0], want)
			}
			return nil
		}, nil
	})
}
