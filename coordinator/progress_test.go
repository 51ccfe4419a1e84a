package coordinator

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tutti-go/tutti/internal/bridge"
)

// fakeWires records whether the wires are armed. Arm arms them. Poll disarms them when it begins,
// and arms them again before it returns, unless the condition is met before that.
type fakeWires struct {
	during func(ev bridge.PollCondition) // what happens while a goroutine polls
	armed  atomic.Bool
	rests  atomic.Int32
}

func (f *fakeWires) Poll(_ context.Context, ev bridge.PollCondition) bool {
	f.armed.Store(false)
	f.during(ev)
	if ev.Met() {
		return true
	}
	f.Arm()
	return ev.Met()
}

func (f *fakeWires) Arm() {
	f.rests.Add(1)
	f.armed.Store(true)
}

// pollers returns a coordinator that has only the state of progress.
func pollers() (*fakeWires, *Coordinator) {
	f, co := &fakeWires{}, &Coordinator{}
	co.progress.wires = f
	return f, co
}

// addTestWaiter adds a waiter, which only the test finishes.
func (co *Coordinator) addTestWaiter() *waiter {
	co.progress.addWaiters(1)
	return &waiter{woken: make(chan struct{}, 1)}
}

func TestAWaiterThatFindsAPollerIsWokenByTheWires(t *testing.T) {
	f, co := pollers()
	first := co.addTestWaiter()
	f.during = func(bridge.PollCondition) {
		second := co.addTestWaiter()
		co.poll(t.Context(), second) // finds a poller, and sleeps
		first.finish(co, nil)
	}
	co.poll(t.Context(), first)
	if !f.armed.Load() || co.progress.has(polling) {
		t.Errorf("one goroutine waits: got armed %v and polling %v, want true and false", f.armed.Load(), co.progress.has(polling))
	}
}

func TestAnExecutorThatBecomesIdleAsThePollerEndsIsWokenByTheWires(t *testing.T) {
	f, co := pollers()
	first := co.addTestWaiter()
	f.during = func(ev bridge.PollCondition) {
		co.progress.set(executing) // the executor gets a job,
		if !ev.Met() {
			t.Error("the executor is busy, and the poller stays")
		}
		co.progress.clear(executing) // and is done with it, but the poller has not left yet
		co.poll(t.Context(), nil)
		if !ev.Met() {
			t.Error("what has happened did not stay so")
		}
	}
	co.poll(t.Context(), first)
	if !f.armed.Load() {
		t.Error("one goroutine waits, the executor sleeps, and the wires are not armed")
	}
}

func TestNobodyArmsTheWiresForNobody(t *testing.T) {
	f, co := pollers()
	only := co.addTestWaiter()
	f.during = func(bridge.PollCondition) { only.finish(co, nil) }
	co.poll(t.Context(), only)
	if n := f.rests.Load(); n != 0 {
		t.Errorf("got %d calls of Arm, and nobody waits; want 0", n)
	}
}

func TestNobodyPollsBesideABusyExecutor(t *testing.T) {
	f, co := pollers()
	f.during = func(bridge.PollCondition) { t.Error("a goroutine polls") }
	co.progress.set(executing)
	co.poll(t.Context(), co.addTestWaiter())
	if !co.progress.has(executing) || co.progress.waiters() != 1 || co.progress.has(polling|stepping|hasEvents) {
		t.Errorf("got state %b, want one waiter and executing", co.progress.word.Load())
	}
}

// However two goroutines interleave, the wires must be armed in the end, because one of the
// goroutines still waits.
func TestAPollerArmsTheWiresForThoseWhoStay(t *testing.T) {
	for round := range 3000 {
		f, co := pollers()
		first, other := co.addTestWaiter(), &waiter{woken: make(chan struct{}, 1)}
		var finished atomic.Bool
		f.during = func(ev bridge.PollCondition) {
			if ev.(*pollEnd).w == first {
				first.finish(co, nil)
				finished.Store(true)
			}
		}
		var both sync.WaitGroup
		both.Go(func() {
			for !finished.Load() {
				runtime.Gosched()
			}
			for range round % 100 { // a delay that differs from round to round
				finished.Load()
			}
			co.progress.addWaiters(1)
			co.poll(context.Background(), other)
		})
		both.Go(func() { co.poll(context.Background(), first) })
		both.Wait()
		if !f.armed.Load() || co.progress.has(polling) {
			t.Fatalf("round %d: one goroutine waits: got armed %v and polling %v, want true and false", round, f.armed.Load(), co.progress.has(polling))
		}
	}
}
