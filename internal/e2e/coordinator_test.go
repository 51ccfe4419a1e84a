//go:build unix

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
	"github.com/tutti-go/tutti/fault"
)

// The phases of a tensor's life in which a rank is killed.
const (
	beforeSubmit = "before it submits"  // the others wait for the victim
	negotiating  = "in the negotiation" // all wait, the victim too, for others that live
	onTheWire    = "on the wire"        // large tensors, again and again
	fromTheCache = "from the cache"     // small ones, again and again
)

// coordinate has a rank of a coordinator be in a phase, say so, and wait for what
// it has submitted. It tells of every handle that did not end as it must, and
// then of the last to end.
func coordinate(ctx context.Context, a *actor, c *comm.Comm) error {
	co, err := coordinator.Start(ctx, c)
	if err != nil {
		return err
	}
	var hs []*coordinator.Handle
	switch a.Phase {
	case beforeSubmit:
		a.say("there", "")
		if a.rank == a.Victim {
			select {} // killed here
		}
		hs = append(hs, coordinator.AllReduce(co, "w", make([]float32, 8), comm.Sum))
	case negotiating:
		for r := range co.Size() {
			if r != a.rank && r != a.Victim {
				hs = append(hs, coordinator.AllReduce(co, fmt.Sprint("lacks rank ", r), make([]float32, 8), comm.Sum))
			}
		}
		a.say("there", "")
	case onTheWire:
		hs = sumNamed(a, co, 4, 1<<20)
	case fromTheCache:
		hs = sumNamed(a, co, 50, 64)
	}
	at, err := below(), coordinator.WaitAll(ctx, hs...)
	for i, h := range hs {
		if err := h.Wait(ctx); err != nil && !blamesLost(err, a.Victim) {
			a.say("wrong", fmt.Sprintf("handle %d: %v", i, err))
		}
	}
	a.tell("ended", at, err)
	if e := co.Close(ctx); !blamesLost(e, a.Victim) {
		a.say("wrong", fmt.Sprintf("close: %v", e))
	}
	return err
}

// sumNamed sums the same tensors again and again, and returns the handles of the
// step that fails.
func sumNamed(a *actor, co *coordinator.Coordinator, tensors, elements int) []*coordinator.Handle {
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
		if coordinator.WaitAll(context.Background(), hs...) != nil {
			return hs
		}
	}
}

func blamesLost(err error, rank int) bool {
	var f *fault.Error
	return errors.As(err, &f) && f.Kind == fault.PeerLost && len(f.Peers) == 1 && f.Peers[0].Rank == rank
}

func TestARankKilledInAnyPhaseEndsEveryHandleWithinASecond(t *testing.T) {
	for _, wire := range wires() {
		for _, phase := range []string{beforeSubmit, negotiating, onTheWire, fromTheCache} {
			for _, victim := range []int{0, 1} {
				t.Run(fmt.Sprintf("%s/%s/rank%d", wire, strings.ReplaceAll(phase, " ", "-"), victim), func(t *testing.T) {
					killInPhase(t, wire, order{Phase: phase, Victim: victim})
				})
			}
		}
	}
}

func killInPhase(t *testing.T, wire string, o order) {
	t.Helper()
	const ranks = 3
	o.Scene = "coordinate"
	j := run(t, ranks, wire, o)
	pids := j.pids(ranks)
	j.events("there", ranks)
	killed := j.signal(pids[o.Victim], syscall.SIGKILL)
	for _, e := range j.events("ended", ranks-1) {
		if e.Kind != fault.PeerLost.Error() {
			t.Errorf("rank %d got kind %q, want %q: %s", e.Rank, e.Kind, fault.PeerLost, e.Text)
		}
		j.wantBlamed(e, o.Victim, "")
		j.wantWithin(e, killed, time.Second)
	}
	j.ends(128+int(syscall.SIGKILL), fmt.Sprintf("tuttirun: rank %d (", o.Victim))
	for _, e := range j.events("wrong", 0) {
		t.Errorf("rank %d: %s", e.Rank, e.Text)
	}
}
