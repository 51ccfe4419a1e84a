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
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/reduce"
)

// A phase of a coordinator's life in which a rank is killed. The director kills it
// once ranks have said that they are there, which none says too early: a phase that
// would pass by itself does not, since the victim stands still in it.
type phase struct {
	name  string
	wires []string
	there int // ranks that say so
	enter func(ctx context.Context, a *actor, co *coordinator.Coordinator) ending
}

// An ending is what became of a rank's calls: of the one that it waited in, and of
// submissions that must have ended with it. So many of these may have succeeded before
// the victim was killed, and no more: the others lack it.
type ending struct {
	at  call
	err error
	hs  []*coordinator.Handle
	may int // have succeeded
}

// Three ranks: the victim is rank 0 or 1.
const (
	coordinated = 3
	bystander   = 2
)

func phases() []phase {
	two := []string{wires()[0], wires()[len(wires())-1]} // whatever a rank does, wires tell of its end alike
	return []phase{
		{"before it submits", wires(), coordinated, beforeSubmit},
		{"half way through its submissions", two, coordinated, halfWay},
		{"before it submits, while nobody looks at the wires", two, coordinated, unattended},
		{"in the negotiation", wires(), coordinated, negotiating},
		{"in a call of fused tensors", two, coordinated, stuckIn(50, 64, 100)},
		{"in the third of five parts", two, coordinated, stuckIn(1, 4<<20, 1_400_000)},
		{"on the wire", wires(), coordinated, again(4, 1<<20)},
		{"from the cache", wires(), coordinated, again(50, 64)},
		{"before it joins", two, coordinated, beforeJoin},
		{"after it has joined", two, 1, joined},
		{"before it adds a process set", two, coordinated, addingSet},
		{"before it closes", two, coordinated, closing},
	}
}

func tensorOf(co *coordinator.Coordinator, name string) *coordinator.Handle {
	return coordinator.AllReduce(co, name, make([]float32, 8), comm.Sum)
}

func waitFor(ctx context.Context, hs ...*coordinator.Handle) ending {
	at, err := here(), coordinator.WaitAll(ctx, hs...)
	return ending{at, err, hs, 0}
}

// but says how many of the submissions may have succeeded.
func (e ending) but(may int) ending {
	e.may = may
	return e
}

// there says that the rank is in its phase, in which the victim stays.
func (a *actor) there() {
	a.say("there", "")
	if a.rank == a.Victim {
		select {} // killed here
	}
}

// beforeSubmit has the others wait for the victim.
func beforeSubmit(ctx context.Context, a *actor, co *coordinator.Coordinator) ending {
	a.there()
	return waitFor(ctx, tensorOf(co, "w"))
}

// halfWay has the victim submit one half of the others' tensors, which all get.
func halfWay(ctx context.Context, a *actor, co *coordinator.Coordinator) ending {
	var hs []*coordinator.Handle
	for i := range 25 {
		hs = append(hs, tensorOf(co, fmt.Sprint("w", i)))
	}
	if a.rank == a.Victim {
		if err := coordinator.WaitAll(ctx, hs...); err != nil {
			a.say("wrong", err.Error())
		}
		a.there()
	}
	for i := range 25 {
		hs = append(hs, tensorOf(co, fmt.Sprint("v", i)))
	}
	a.there()
	return waitFor(ctx, hs...).but(25) // what the victim has submitted, too
}

// unattended is beforeSubmit, and nobody is in a Wait.
func unattended(ctx context.Context, a *actor, co *coordinator.Coordinator) ending {
	a.there()
	hs := []*coordinator.Handle{tensorOf(co, "v"), tensorOf(co, "w")}
	at := here()
	for _, h := range hs {
		<-h.Done()
	}
	return ending{at, hs[0].Wait(ctx), hs, 0}
}

// negotiating has all wait, the victim too, for others that live.
func negotiating(ctx context.Context, a *actor, co *coordinator.Coordinator) ending {
	var hs []*coordinator.Handle
	for r := range co.Size() {
		if r != a.rank && r != a.Victim {
			hs = append(hs, tensorOf(co, fmt.Sprint("lacks rank ", r)))
		}
	}
	a.say("there", "")
	return waitFor(ctx, hs...)
}

// stuckIn has the victim fold so many elements of some tensors, and no more. Of three
// ranks each folds two thirds of all elements, so those tensors may succeed of which
// that is all; where all are fused, none does.
func stuckIn(tensors, elements int, folds int64) func(context.Context, *actor, *coordinator.Coordinator) ending {
	return func(ctx context.Context, a *actor, co *coordinator.Coordinator) ending {
		var folded atomic.Int64
		op := reduce.Func("sum as far as it goes", reduce.Commutative, func(x, y float32) float32 {
			if a.rank == a.Victim && folded.Add(1) == folds {
				a.there()
			}
			return x + y
		})
		var hs []*coordinator.Handle
		for i := range tensors {
			hs = append(hs, coordinator.AllReduce(co, fmt.Sprint("w", i), make([]float32, elements), op))
		}
		if a.rank != a.Victim {
			a.there()
		}
		return waitFor(ctx, hs...).but(int(folds) / (2 * elements / 3))
	}
}

// again sums the same tensors again and again, the victim too, until that fails: at
// any moment.
func again(tensors, elements int) func(context.Context, *actor, *coordinator.Coordinator) ending {
	return func(ctx context.Context, a *actor, co *coordinator.Coordinator) ending {
		hs, bufs := make([]*coordinator.Handle, tensors), make([][]float32, tensors)
		for step := 0; ; step++ {
			for i := range hs {
				if step == 0 {
					bufs[i] = make([]float32, elements)
				}
				hs[i] = coordinator.AllReduce(co, fmt.Sprint("w", i), bufs[i], comm.Sum)
			}
			if step == 3 {
				a.say("there", "")
			}
			if e := waitFor(ctx, hs...); e.err != nil {
				return e.but(len(hs) - 1)
			}
		}
	}
}

// beforeJoin has the others wait until the victim joins.
func beforeJoin(ctx context.Context, a *actor, co *coordinator.Coordinator) ending {
	a.there()
	at := below()
	_, err := co.Join(ctx)
	return ending{at: at, err: err}
}

// joined has the victim wait for a rank that does not join, and submits what others
// need not once they have.
func joined(ctx context.Context, a *actor, co *coordinator.Coordinator) ending {
	if a.rank != bystander {
		at := below()
		_, err := co.Join(ctx)
		return ending{at: at, err: err}
	}
	if err := tensorOf(co, "after the others have joined").Wait(ctx); err != nil {
		a.say("wrong", err.Error())
	}
	a.there()
	a.wait(0)
	return waitFor(ctx, tensorOf(co, "after one of them was killed"))
}

// addingSet has the others wait until the victim agrees.
func addingSet(ctx context.Context, a *actor, co *coordinator.Coordinator) ending {
	a.there()
	at := below()
	_, err := co.AddProcessSet(ctx, "all", 0, 1, 2)
	return ending{at: at, err: err}
}

// closing has the others wait until the victim closes, with something under way.
func closing(ctx context.Context, a *actor, co *coordinator.Coordinator) ending {
	a.there()
	h := tensorOf(co, "w")
	at, err := here(), co.Close(ctx)
	return ending{at, err, []*coordinator.Handle{h}, 0}
}

// coordinate has a rank of a coordinator be in a phase. It tells of every handle that
// did not end as it must, and then how the call ended in which the rank waited.
func coordinate(ctx context.Context, a *actor, c *comm.Comm) error {
	co, err := coordinator.Start(ctx, c)
	if err != nil {
		return err
	}
	var end ending
	for _, p := range phases() {
		if p.name == a.Phase {
			end = p.enter(ctx, a, co)
		}
	}
	succeeded := 0
	for i, h := range end.hs {
		switch err := h.Wait(ctx); {
		case err == nil:
			succeeded++
		case !blamesLost(err, a.Victim):
			a.say("wrong", fmt.Sprintf("handle %d: %v", i, err))
		}
	}
	if succeeded > end.may {
		a.say("wrong", fmt.Sprintf("%d handles of %d succeeded, and at most %d can have", succeeded, len(end.hs), end.may))
	}
	a.tell("ended", end.at, end.err)
	if e := co.Close(ctx); !blamesLost(e, a.Victim) {
		a.say("wrong", fmt.Sprintf("close: %v", e))
	}
	return end.err
}

func blamesLost(err error, rank int) bool {
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
	j := run(t, coordinated, wire, order{Scene: "coordinate", Phase: p.name, Victim: victim})
	pids := j.pids(coordinated)
	j.events("there", p.there)
	killed := j.signal(pids[victim], syscall.SIGKILL)
	j.open(0)
	for _, e := range j.events("ended", coordinated-1) {
		if e.Kind != fault.PeerLost.Error() {
			t.Errorf("rank %d got kind %q, want %q: %s", e.Rank, e.Kind, fault.PeerLost, e.Text)
		}
		j.wantBlamed(e, victim, "")
		j.wantWithin(e, killed, time.Second)
	}
	j.ends(128+int(syscall.SIGKILL), fmt.Sprintf("tuttirun: rank %d (", victim))
	for _, e := range j.events("wrong", 0) {
		t.Errorf("rank %d: %s", e.Rank, e.Text)
	}
}
