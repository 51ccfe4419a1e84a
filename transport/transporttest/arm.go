package transporttest

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tutti-go/tutti/transport"
)

func armPromises() []promise {
	return []promise{
		{"ArmFiresWhenAFrameComes", armFiresOnFrame},
		{"ArmCountsWhatCameBefore", armCountsBefore},
		{"ArmFiresInTheMiddleOfABody", armFiresMidBody},
		{"ArmFiresOnClose", armFiresOnClose},
		{"ArmFiresOnFailure", armFiresOnFailure},
		{"ArmFiresAfterTheTransportClosed", armFiresOnTransportClose},
		{"ReadyMayUseTheConn", readyMayUseConn},
		{"ReadyRunsOnce", readyRunsOnce},
		{"SecondArmReplacesTheFirst", secondArmReplaces},
		{"ArmDoesNotSpin", armDoesNotSpin},
		{"ArmNeverLosesAWakeUp", armNeverLoses},
		{"SleepingSenderGetsEverythingOut", sleepingSender},
	}
}

// armed arms c with a callback that rings the returned bell.
func armed(c transport.Conn) <-chan struct{} {
	bell := make(chan struct{}, 1)
	c.Arm(func() { ring(bell) })
	return bell
}

func ring(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}

// settle polls e until a call finds nothing.
func (e *end) settle() {
	e.w.tb.Helper()
	quiet := 0
	e.w.poll("an idle Progress", nil, func() bool {
		if state, _ := e.progress(); state == transport.Idle {
			quiet++
		} else {
			quiet = 0
		}
		return quiet == 2
	})
}

// sleep waits, by Arm alone, until done; it polls only when woken.
func (e *end) sleep(what string, done func() bool) {
	deadline := time.NewTimer(patience())
	defer deadline.Stop()
	for {
		state, err := e.progress()
		if done() || err != nil {
			return
		}
		if state != transport.Idle {
			runtime.Gosched()
			continue
		}
		select {
		case <-armed(e.Conn):
		case <-deadline.C:
			e.w.errorf("%s: %s: no wake-up came in %v", e.name, what, patience())
			return
		}
	}
}

func armFiresOnFrame(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	for i, size := range []int{0, 10, 400_000} {
		far.settle()
		bell := armed(far.Conn)
		s := near.send([]byte{byte(i)}, pattern(size, 1))
		w.poll("the wake-up", []*end{near}, func() bool { return len(bell) > 0 })
		start := len(far.sink.got)
		w.until("the frame", func() bool { return len(far.sink.got) > start })
		w.compare([]*sent{s}, far.sink.got[start:])
	}
}

// armCountsBefore arms when all has happened already.
func armCountsBefore(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	far.settle()
	first := armed(far.Conn)
	near.send(nil, []byte("early"))
	w.poll("the first wake-up", []*end{near}, func() bool { return len(first) > 0 })
	w.await("the wake-up for a frame that lies there", armed(far.Conn))
}

func armFiresMidBody(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	s := near.send(nil, pattern(8<<20, 1))
	partly := false
	far.sink.partly = func(transport.Header, int) { partly = true }
	w.until("the first bytes", func() bool { return partly })
	stop := near.keepPolling()
	far.sleep("the rest of a body", func() bool { return len(far.sink.got) == 1 })
	stop()
	w.compare([]*sent{s}, far.sink.got)
}

func armFiresOnClose(t *testing.T, mk Maker) {
	w, near, _ := pair(t, mk)
	near.settle()
	bell := armed(near.Conn)
	near.Close()
	w.await("the wake-up by Close", bell)
	w.await("the wake-up on a closed Conn", armed(near.Conn))
}

func armFiresOnFailure(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	far.settle()
	bell := armed(far.Conn)
	near.Close()
	w.await("the wake-up by the peer's Close", bell)
	far.sleep("the error", func() bool { return far.err != nil })
	if far.err == nil {
		t.Fatal("Progress returned no error after the peer's Close")
	}
	w.await("the wake-up on a failed Conn", armed(far.Conn))
}

func armFiresOnTransportClose(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	near.settle()
	far.settle()
	mine, theirs := armed(near.Conn), armed(far.Conn)
	w.within("Close", func() { w.closeNode(0) })
	w.await("the wake-up by the Transport's Close", mine)
	w.await("the wake-up by the peer's Close", theirs)
	w.await("the wake-up after the Transport's Close", armed(near.Conn))
}

// readyMayUseConn does from ready all that a watcher does.
func readyMayUseConn(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	finished := make(chan struct{})
	var ready func()
	ready = func() {
		for {
			state, err := far.progress()
			if err != nil {
				w.errorf("Progress in ready: %v", err)
			}
			if state == transport.Idle || err != nil {
				break
			}
		}
		if len(far.sink.got) == 1 {
			far.send([]byte("answer"), nil)
			close(finished)
			return
		}
		far.Arm(ready)
	}
	far.Arm(ready)
	near.send([]byte("question"), pattern(300_000, 1))
	w.poll("the answer", []*end{near}, func() bool { return len(near.sink.got) == 1 })
	w.await("the end of ready", finished)
}

func readyRunsOnce(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	far.settle()
	var ran atomic.Int32
	far.Arm(func() { ran.Add(1) })
	for range 20 {
		w.exchange([]*sent{near.send(nil, []byte("x"))}, far)
	}
	// What Progress has taken may have woken nobody; what it leaves must.
	left := near.send(nil, []byte("y"))
	w.poll("the wake-up", []*end{near}, func() bool { return ran.Load() > 0 })
	w.exchange([]*sent{left}, far)
	near.send(nil, []byte("last"))
	bell := armed(far.Conn)
	w.poll("the last wake-up", []*end{near}, func() bool { return len(bell) > 0 })
	if got := ran.Load(); got != 1 {
		t.Errorf("ready ran %d times, want once", got)
	}
}

func secondArmReplaces(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	far.settle()
	var first atomic.Int32
	far.Arm(func() { first.Add(1) })
	bell := armed(far.Conn)
	near.send(nil, []byte("x"))
	w.poll("the wake-up", []*end{near}, func() bool { return len(bell) > 0 })
	if first.Load() > 0 {
		t.Error("a callback ran that a second Arm had replaced")
	}
}

// armDoesNotSpin arms again at each wake-up, on a quiet Conn and on one whose
// peer does not receive. A wake-up may be in vain, but not time after time: it
// would cost the program a core.
func armDoesNotSpin(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	count := func(what string, e *end) {
		if got := e.wakeUpsIn(50 * time.Millisecond); got > 50 {
			t.Errorf("%s: %d wake-ups in 50 ms", what, got)
		}
	}
	far.settle()
	count("quiet", far)
	body := make([]byte, 4<<20)
	for range 16 {
		near.send(nil, body)
	}
	near.settle()
	count("blocked", near)
	w.until("the bodies", func() bool { return len(far.sink.got) == 16 })
}

// wakeUpsIn counts how often ready runs in d, when each arms anew.
func (e *end) wakeUpsIn(d time.Duration) (n int) {
	var mu sync.Mutex // guards n, over and e
	over := false
	var ready func()
	ready = func() {
		mu.Lock()
		defer mu.Unlock()
		if over {
			return
		}
		n++
		for state := transport.Moved; state == transport.Moved; {
			state, _ = e.progress()
		}
		e.Arm(ready)
	}
	e.Arm(ready)
	<-time.After(d) // how long we look, not what we wait for
	mu.Lock()
	defer mu.Unlock()
	over = true
	return n
}

// armNeverLoses plays ping-pong between two goroutines that sleep on Arm alone:
// one lost wake-up stops the game. In turn each answers at once, or a little
// later, so that the frame meets the other before, in and after its Arm.
func armNeverLoses(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	w.pingPong(near, far)
}

// pingPong has two goroutines, one per end, throw a frame to and fro, some large,
// and sleep in between.
func (w *world) pingPong(near, far *end) {
	rounds := some(3000)
	play := func(e *end, first bool, seed uint64) {
		rng, body := rand.New(rand.NewPCG(seed, 1)), pattern(40_000, seed)
		for i := range 2 * rounds {
			if first == (i%2 == 0) {
				for range rng.IntN(40) {
					runtime.Gosched()
				}
				e.send(nil, body[:1+rng.IntN(50)/49*(len(body)-1)])
				continue
			}
			e.sleep("ping-pong", func() bool { return len(e.sink.got) > i/2 })
			if e.err != nil || len(e.sink.got) <= i/2 {
				w.errorf("%s: the game stopped in round %d of %d: %v", e.name, i/2, rounds, e.err)
				return
			}
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() { play(near, true, 1) })
	wg.Go(func() { play(far, false, 2) })
	w.within("the end of the game", wg.Wait)
}

// sleepingSender queues more than any buffer holds and sleeps until Done or a
// wake-up, as a Send that waits does.
func sleepingSender(t *testing.T, mk Maker) {
	const n, size = 24, 1 << 20
	w, near, far := pair(t, mk)
	body := pattern(size, 1)
	bell := make(chan struct{}, 1)
	var left atomic.Int32
	left.Store(n)
	for range n {
		near.Send(&w.frame(nil, body, func(error) { left.Add(-1); ring(bell) }).Frame)
	}
	buf := make([]byte, size)
	far.sink.place = func(transport.Header) []byte { return buf }
	stop := far.keepPolling()
	timer := time.NewTimer(patience())
	defer timer.Stop()
	for left.Load() > 0 {
		for state := transport.Moved; state == transport.Moved; {
			state, _ = near.progress()
		}
		near.Arm(func() { ring(bell) })
		select {
		case <-bell:
		case <-timer.C:
			t.Fatalf("%d of %d frames are not done, and nobody wakes their sender", left.Load(), n)
		}
	}
	stop()
}
