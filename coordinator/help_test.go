package coordinator

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tutti-go/tutti/comm"
)

// wires are a lookout's: watched since Rest, and no more once somebody polls.
type wires struct {
	poll    func(ev comm.Event) // what happens meanwhile
	watched atomic.Bool
	rests   atomic.Int32
}

func (ws *wires) Poll(_ context.Context, ev comm.Event) bool {
	ws.watched.Store(false)
	ws.poll(ev)
	if ev.Met() {
		return true
	}
	ws.Arm()
	return ev.Met()
}

func (ws *wires) Arm() {
	ws.rests.Add(1)
	ws.watched.Store(true)
}

// addTestWaiter has somebody wait, for nothing but what the test says.
func (co *Coordinator) addTestWaiter() *waiter {
	co.waiting.Add(1)
	return &waiter{woken: make(chan struct{}, 1), remaining: 1}
}

func TestWhoComesWhileAnotherHelpsIsWokenByTheWires(t *testing.T) {
	ws, co := &wires{}, &Coordinator{}
	co.lookout = ws
	first := co.addTestWaiter()
	ws.poll = func(comm.Event) {
		second := co.addTestWaiter()
		co.help(t.Context(), second) // finds that somebody helps, and sleeps
		first.handleDone(co)
	}
	co.help(t.Context(), first)
	if !ws.watched.Load() || co.helping.Load() {
		t.Errorf("one waits: the wires are watched: %v, want true; somebody is said to help: %v, want false", ws.watched.Load(), co.helping.Load())
	}
}

func TestAnExecutorThatGetsIdleAsItsHelperLeavesIsWokenByTheWires(t *testing.T) {
	ws, co := &wires{}, &Coordinator{}
	co.lookout = ws
	first := co.addTestWaiter()
	ws.poll = func(ev comm.Event) {
		co.exec.busy.Store(true) // there is something to do,
		if !ev.Met() {
			t.Error("the executor is busy, and the helper stays")
		}
		co.exec.busy.Store(false) // and that was all: but the helper has not gone yet
		co.help(t.Context(), nil)
		if !ev.Met() {
			t.Error("what has happened did not stay so")
		}
	}
	co.help(t.Context(), first)
	if !ws.watched.Load() {
		t.Error("one waits, the executor sleeps, and the wires are not watched")
	}
}

func TestNobodyLooksAtTheWiresForNobody(t *testing.T) {
	ws, co := &wires{}, &Coordinator{}
	co.lookout = ws
	only := co.addTestWaiter()
	ws.poll = func(comm.Event) { only.handleDone(co) }
	co.help(t.Context(), only)
	if n := ws.rests.Load(); n != 0 {
		t.Errorf("the wires are watched %d times, and nobody waits", n)
	}
}

// However two meet, the wires are watched in the end, since one of them waits still.
func TestHelpThatChangesHandsLeavesNobodyUnwatched(t *testing.T) {
	for round := range 3000 {
		ws, co := &wires{}, &Coordinator{}
		co.lookout = ws
		lucky, other := co.addTestWaiter(), &waiter{woken: make(chan struct{}, 1), remaining: 1}
		var over atomic.Bool
		ws.poll = func(ev comm.Event) {
			if ev.(*watch).w == lucky {
				lucky.handleDone(co)
				over.Store(true)
			}
		}
		var both sync.WaitGroup
		both.Go(func() {
			for !over.Load() {
				runtime.Gosched()
			}
			for range round % 100 { // the other is about to leave: a little earlier or later
				over.Load()
			}
			co.waiting.Add(1)
			co.help(context.Background(), other)
		})
		both.Go(func() { co.help(context.Background(), lucky) })
		both.Wait()
		if !ws.watched.Load() || co.helping.Load() {
			t.Fatalf("round %d: one waits, and the wires are watched: %v, somebody is said to help: %v", round, ws.watched.Load(), co.helping.Load())
		}
	}
}
