//go:build unix

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/reduce"
)

// A phase is a part of a coordinator's life in which the test kills a rank. The test kills the
// victim once enough ranks have reported that they are in the phase. The victim stays in the phase
// until then, so that the phase cannot end before the kill.
type phase struct {
	name  string
	wires []string
	ready int // how many ranks report the phase
	run   func(ctx context.Context, a *rankProcess, co *coordinator.Coordinator) callResult
}

// A callResult is the outcome of a rank's calls. It holds the call in which the rank waited, and
// the submissions that must have ended together with that call. At most maxSucceeded submissions
// may have succeeded before the victim was killed. The others must fail, because they need the
// victim.
type callResult struct {
	at           callSite
	err          error
	hs           []*coordinator.Handle
	maxSucceeded int // how many submissions may have succeeded
}

// The job has three ranks. The victim is rank 0 or rank 1.
const (
	coordinatorRanks = 3
	bystander        = 2
)

func phases() []phase {
	// The first and the last transport are enough, because the phase does not change how a
	// transport reports the end of a rank.
	two := []string{wires()[0], wires()[len(wires())-1]}
	return []phase{
		{"before it submits", wires(), coordinatorRanks, beforeSubmit},
		{"half way through its submissions", two, coordinatorRanks, halfSubmitted},
		{"before it submits, while nobody looks at the wires", two, coordinatorRanks, noPoller},
		{"in the negotiation", wires(), coordinatorRanks, negotiating},
		{"in a call of fused tensors", two, coordinatorRanks, stuckInReduction(50, 64, 100)},
		{"in the third of five parts", two, coordinatorRanks, stuckInReduction(1, 4<<20, 1_400_000)},
		{"on the wire", wires(), coordinatorRanks, repeated(4, 1<<20)},
		{"from the cache", wires(), coordinatorRanks, repeated(50, 64)},
		{"before it joins", two, coordinatorRanks, beforeJoin},
		{"after it has joined", two, 1, joined},
		{"before it adds a process set", two, coordinatorRanks, addingSet},
		{"before it closes", two, coordinatorRanks, closing},
	}
}

func tensorOf(co *coordinator.Coordinator, name string) *coordinator.Handle {
	return coordinator.AllReduce(co, name, make([]float32, 8), comm.Sum)
}

func waitFor(ctx context.Context, hs ...*coordinator.Handle) callResult {
	at, err := callHere(), coordinator.WaitAll(ctx, hs...)
	return callResult{at, err, hs, 0}
}

// allowing sets how many of the submissions may have succeeded.
func (e callResult) allowing(may int) callResult {
	e.maxSucceeded = may
	return e
}

// atPoint reports that the rank is in its phase. The victim stays there.
func (a *rankProcess) atPoint() {
	a.log("there", "")
	if a.rank == a.Victim {
		select {} // the test kills the rank here
	}
}

// beforeSubmit makes the other ranks wait for the victim.
func beforeSubmit(ctx context.Context, a *rankProcess, co *coordinator.Coordinator) callResult {
	a.atPoint()
	return waitFor(ctx, tensorOf(co, "w"))
}

// halfSubmitted makes the victim submit one half of the tensors that the other ranks submit. This
// half succeeds on all ranks.
func halfSubmitted(ctx context.Context, a *rankProcess, co *coordinator.Coordinator) callResult {
	var hs []*coordinator.Handle
	for i := range 25 {
		hs = append(hs, tensorOf(co, fmt.Sprint("w", i)))
	}
	if a.rank == a.Victim {
		if err := coordinator.WaitAll(ctx, hs...); err != nil {
			a.log("wrong", err.Error())
		}
		a.atPoint()
	}
	for i := range 25 {
		hs = append(hs, tensorOf(co, fmt.Sprint("v", i)))
	}
	a.atPoint()
	return waitFor(ctx, hs...).allowing(25) // the tensors that the victim has submitted, too
}

// noPoller does the same as beforeSubmit without a goroutine in Wait.
func noPoller(ctx context.Context, a *rankProcess, co *coordinator.Coordinator) callResult {
	a.atPoint()
	hs := []*coordinator.Handle{tensorOf(co, "v"), tensorOf(co, "w")}
	at := callHere()
	for _, h := range hs {
		<-h.Done()
	}
	return callResult{at, hs[0].Wait(ctx), hs, 0}
}

// negotiating makes all ranks, even the victim, wait for submissions of other ranks.
func negotiating(ctx context.Context, a *rankProcess, co *coordinator.Coordinator) callResult {
	var hs []*coordinator.Handle
	for r := range coordinatorRanks {
		if r != a.rank && r != a.Victim {
			hs = append(hs, tensorOf(co, fmt.Sprint("lacks rank ", r)))
		}
	}
	a.log("there", "")
	return waitFor(ctx, hs...)
}

// stuckInReduction stops the victim after it has reduced a number of elements of one tensor, or of
// several tensors. Several tensors are a group, so that they are fused whenever the ranks submit
// them, and none of them may succeed. A few small tensors in shared memory would not suffice: every
// rank reduces a short vector by itself, so the tensors of the other ranks would succeed.
func stuckInReduction(tensors, elements int, folds int64) func(context.Context, *rankProcess, *coordinator.Coordinator) callResult {
	return func(ctx context.Context, a *rankProcess, co *coordinator.Coordinator) callResult {
		var folded atomic.Int64
		op := reduce.Func("sum as far as it goes", reduce.Commutative, func(x, y float32) float32 {
			if a.rank == a.Victim && folded.Add(1) == folds {
				a.atPoint()
			}
			return x + y
		})
		var hs []*coordinator.Handle
		submit := func(to coordinator.Submitter) {
			for i := range tensors {
				hs = append(hs, coordinator.AllReduce(to, fmt.Sprint("w", i), make([]float32, elements), op))
			}
		}
		if tensors > 1 {
			co.Group(func(g *coordinator.TensorGroup) { submit(g) })
		} else {
			submit(co)
		}
		if a.rank != a.Victim {
			a.atPoint()
		}
		return waitFor(ctx, hs...)
	}
}

// repeated sums the same tensors until a sum fails. The test kills the victim at a random moment.
func repeated(tensors, elements int) func(context.Context, *rankProcess, *coordinator.Coordinator) callResult {
	return func(ctx context.Context, a *rankProcess, co *coordinator.Coordinator) callResult {
		hs, bufs := make([]*coordinator.Handle, tensors), make([][]float32, tensors)
		for step := 0; ; step++ {
			for i := range hs {
				if step == 0 {
					bufs[i] = make([]float32, elements)
				}
				hs[i] = coordinator.AllReduce(co, fmt.Sprint("w", i), bufs[i], comm.Sum)
			}
			if step == 3 {
				a.log("there", "")
			}
			if e := waitFor(ctx, hs...); e.err != nil {
				return e.allowing(len(hs) - 1)
			}
		}
	}
}

// beforeJoin makes the other ranks wait until the victim joins.
func beforeJoin(ctx context.Context, a *rankProcess, co *coordinator.Coordinator) callResult {
	a.atPoint()
	at := callBelow()
	_, err := co.Join(ctx)
	return callResult{at: at, err: err}
}

// joined makes the victim wait in Join for a rank that does not join. It also submits tensors that
// the other ranks need not submit once they have joined.
func joined(ctx context.Context, a *rankProcess, co *coordinator.Coordinator) callResult {
	if a.rank != bystander {
		at := callBelow()
		_, err := co.Join(ctx)
		return callResult{at: at, err: err}
	}
	if err := tensorOf(co, "after the others have joined").Wait(ctx); err != nil {
		a.log("wrong", err.Error())
	}
	a.atPoint()
	a.awaitGate(0)
	return waitFor(ctx, tensorOf(co, "after one of them was killed"))
}

// addingSet makes the other ranks wait until the victim agrees to a process set.
func addingSet(ctx context.Context, a *rankProcess, co *coordinator.Coordinator) callResult {
	a.atPoint()
	at := callBelow()
	_, err := co.AddProcessSet(ctx, "all", 0, 1, 2)
	return callResult{at: at, err: err}
}

// closing makes the other ranks wait until the victim closes, while a tensor is under way.
func closing(ctx context.Context, a *rankProcess, co *coordinator.Coordinator) callResult {
	a.atPoint()
	h := tensorOf(co, "w")
	at, err := callHere(), co.Close(ctx)
	return callResult{at, err, []*coordinator.Handle{h}, 0}
}

// runCoordinator runs a rank of a coordinator in a phase. It reports every handle that ended
// wrongly. It then reports the end of the call in which the rank waited.
func runCoordinator(ctx context.Context, a *rankProcess, c *comm.Comm) error {
	co, err := coordinator.Start(ctx, c)
	if err != nil {
		return err
	}
	var end callResult
	for _, p := range phases() {
		if p.name == a.Phase {
			end = p.run(ctx, a, co)
		}
	}
	succeeded := 0
	for i, h := range end.hs {
		switch err := h.Wait(ctx); {
		case err == nil:
			succeeded++
		case !namesLostRank(err, a.Victim):
			a.log("wrong", fmt.Sprintf("handle %d: %v", i, err))
		}
	}
	if succeeded > end.maxSucceeded {
		a.log("wrong", fmt.Sprintf("%d handles of %d succeeded, and at most %d can have", succeeded, len(end.hs), end.maxSucceeded))
	}
	a.report("ended", end.at, end.err)
	if e := co.Close(ctx); !namesLostRank(e, a.Victim) {
		a.log("wrong", fmt.Sprintf("close: %v", e))
	}
	return end.err
}

func namesLostRank(err error, rank int) bool {
	var f *fault.Error
	return errors.As(err, &f) && f.Kind == fault.PeerLost && len(f.Peers) == 1 && f.Peers[0].Rank == rank
}

func TestARankKilledInAnyPhaseEndsEveryHandleWithinASecond(t *testing.T) {
	for _, p := range phases() {
		for _, wire := range p.wires {
			for _, victim := range []int{0, 1} {
				name := strings.NewReplacer(" ", "-", ",", "").Replace(p.name)
				t.Run(fmt.Sprintf("%s/%s/rank%d", wire, name, victim), func(t *testing.T) {
					killInPhase(t, wire, p, victim)
				})
			}
		}
	}
}

func killInPhase(t *testing.T, wire string, p phase, victim int) {
	t.Helper()
	j := run(t, coordinatorRanks, wire, instruction{Program: "coordinate", Phase: p.name, Victim: victim})
	pids := j.pids(coordinatorRanks)
	j.events("there", p.ready)
	killed := j.signal(pids[victim], syscall.SIGKILL)
	j.open(0)
	j.wantLost(coordinatorRanks-1, victim, "", killed)
	j.wantExit(128+int(syscall.SIGKILL), fmt.Sprintf("tuttirun: rank %d (", victim))
	for _, e := range j.events("wrong", 0) {
		t.Errorf("rank %d: %s", e.Rank, e.Text)
	}
}
