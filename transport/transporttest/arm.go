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

func armTests() []testCase {
	return []testCase{
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

// armSignal arms c and returns a channel that receives when the callback runs.
func armSignal(c transport.Conn) <-chan struct{} {
	signal := make(chan struct{}, 1)
	c.Arm(func() { notify(signal) })
	return signal
}

func notify(signal chan struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}

// pollUntilIdle polls e until two consecutive calls return Idle.
func (e *endpoint) pollUntilIdle() {
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

// waitArmed waits by Arm until done returns true or the Conn fails. It polls only after a
// wake-up.
func (e *endpoint) waitArmed(what string, done func() bool) {
	deadline := time.NewTimer(waitLimit())
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
		case <-armSignal(e.Conn):
		case <-deadline.C:
			e.w.errorf("%s: %s: no wake-up came in %v", e.name, what, waitLimit())
			return
		}
	}
}

func armFiresOnFrame(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	for i, size := range []int{0, 10, 400_000} {
		far.pollUntilIdle()
		signal := armSignal(far.Conn)
		s := near.send([]byte{byte(i)}, pattern(size, 1))
		w.poll("the wake-up", []*endpoint{near}, func() bool { return len(signal) > 0 })
		start := len(far.sink.got)
		w.until("the frame", func() bool { return len(far.sink.got) > start })
		w.compare([]*sentFrame{s}, far.sink.got[start:])
	}
}

// armCountsBefore calls Arm after a frame has arrived. The callback must run all the same.
func armCountsBefore(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	far.pollUntilIdle()
	first := armSignal(far.Conn)
	near.send(nil, []byte("early"))
	w.poll("the first wake-up", []*endpoint{near}, func() bool { return len(first) > 0 })
	w.await("the wake-up for a frame that lies there", armSignal(far.Conn))
}

func armFiresMidBody(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	s := near.send(nil, pattern(8<<20, 1))
	partly := false
	far.sink.partly = func(transport.Header, int) { partly = true }
	w.until("the first bytes", func() bool { return partly })
	stop := near.keepPolling()
	far.waitArmed("the rest of a body", func() bool { return len(far.sink.got) == 1 })
	stop()
	w.compare([]*sentFrame{s}, far.sink.got)
}

func armFiresOnClose(t *testing.T, mk Maker) {
	w, near, _ := pair(t, mk)
	near.pollUntilIdle()
	signal := armSignal(near.Conn)
	near.Close()
	w.await("the wake-up by Close", signal)
	w.await("the wake-up on a closed Conn", armSignal(near.Conn))
}

func armFiresOnFailure(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	far.pollUntilIdle()
	signal := armSignal(far.Conn)
	near.Close()
	w.await("the wake-up by the peer's Close", signal)
	far.waitArmed("the error", func() bool { return far.err != nil })
	if far.err == nil {
		t.Fatal("Progress returned no error after the peer's Close")
	}
	w.await("the wake-up on a failed Conn", armSignal(far.Conn))
}

func armFiresOnTransportClose(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	near.pollUntilIdle()
	far.pollUntilIdle()
	mine, theirs := armSignal(near.Conn), armSignal(far.Conn)
	w.within("Close", func() { w.closeNode(0) })
	w.await("the wake-up by the Transport's Close", mine)
	w.await("the wake-up by the peer's Close", theirs)
	w.await("the wake-up after the Transport's Close", armSignal(near.Conn))
}

// readyMayUseConn polls, sends and arms from inside the callback of Arm. None of these calls may
// fail or deadlock.
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
	w.poll("the answer", []*endpoint{near}, func() bool { return len(near.sink.got) == 1 })
	w.await("the end of ready", finished)
}

func readyRunsOnce(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	far.pollUntilIdle()
	var ran atomic.Int32
	far.Arm(func() { ran.Add(1) })
	for range 20 {
		w.exchange([]*sentFrame{near.send(nil, []byte("x"))}, far)
	}
	// Frames that Progress has received need not make the callback run. A frame that it has not
	// received must make the callback run.
	left := near.send(nil, []byte("y"))
	w.poll("the wake-up", []*endpoint{near}, func() bool { return ran.Load() > 0 })
	w.exchange([]*sentFrame{left}, far)
	near.send(nil, []byte("last"))
	signal := armSignal(far.Conn)
	w.poll("the last wake-up", []*endpoint{near}, func() bool { return len(signal) > 0 })
	if got := ran.Load(); got != 1 {
		t.Errorf("ready ran %d times, want once", got)
	}
}

func secondArmReplaces(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	far.pollUntilIdle()
	var first atomic.Int32
	far.Arm(func() { first.Add(1) })
	signal := armSignal(far.Conn)
	near.send(nil, []byte("x"))
	w.poll("the wake-up", []*endpoint{near}, func() bool { return len(signal) > 0 })
	if first.Load() > 0 {
		t.Error("a callback ran that a second Arm had replaced")
	}
}

// armDoesNotSpin arms again at each wake-up, on an idle Conn and on a Conn whose peer does not
// receive. A wake-up may be spurious, but an endless series of spurious wake-ups would keep a core
// busy.
func armDoesNotSpin(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	count := func(what string, e *endpoint) {
		if got := e.countWakeUps(50 * time.Millisecond); got > 50 {
			t.Errorf("%s: %d wake-ups in 50 ms", what, got)
		}
	}
	far.pollUntilIdle()
	count("quiet", far)
	body := make([]byte, 4<<20)
	for range 16 {
		near.send(nil, body)
	}
	near.pollUntilIdle()
	count("blocked", near)
	w.until("the bodies", func() bool { return len(far.sink.got) == 16 })
}

// countWakeUps counts how often the callback runs in the given time, if each run arms the Conn
// again.
func (e *endpoint) countWakeUps(d time.Duration) (n int) {
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
	<-time.After(d) // the time of observation; the test waits for no event
	mu.Lock()
	defer mu.Unlock()
	over = true
	return n
}

// armNeverLoses runs a ping-pong between two goroutines that wait only by Arm. One lost wake-up
// stops the ping-pong. Each goroutine answers after a random short delay, so frames come before,
// during and after the Arm of the other goroutine.
func armNeverLoses(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	w.pingPong(near, far)
}

// pingPong runs two goroutines, one per endpoint. They send frames back and forth, some of them
// large, and sleep in between.
func (w *cluster) pingPong(near, far *endpoint) {
	rounds := scaled(3000)
	run := func(e *endpoint, first bool, seed uint64) {
		rng, body := rand.New(rand.NewPCG(seed, 1)), pattern(40_000, seed)
		for i := range 2 * rounds {
			if first == (i%2 == 0) {
				for range rng.IntN(40) {
					runtime.Gosched()
				}
				e.send(nil, body[:1+rng.IntN(50)/49*(len(body)-1)])
				continue
			}
			e.waitArmed("ping-pong", func() bool { return len(e.sink.got) > i/2 })
			if e.err != nil || len(e.sink.got) <= i/2 {
				w.errorf("%s: the ping-pong stopped in round %d of %d: %v", e.name, i/2, rounds, e.err)
				return
			}
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() { run(near, true, 1) })
	wg.Go(func() { run(far, false, 2) })
	w.within("the end of the ping-pong", wg.Wait)
}

// sleepingSender queues more bytes than any buffer holds, and sleeps until a Done or a wake-up,
// like the layer above when a send must wait.
func sleepingSender(t *testing.T, mk Maker) {
	const n, size = 24, 1 << 20
	w, near, far := pair(t, mk)
	body := pattern(size, 1)
	signal := make(chan struct{}, 1)
	var left atomic.Int32
	left.Store(n)
	for range n {
		near.Send(&w.frame(nil, body, func(error) { left.Add(-1); notify(signal) }).Frame)
	}
	buf := make([]byte, size)
	far.sink.buffer = func(transport.Header) []byte { return buf }
	stop := far.keepPolling()
	timer := time.NewTimer(waitLimit())
	defer timer.Stop()
	for left.Load() > 0 {
		for state := transport.Moved; state == transport.Moved; {
			state, _ = near.progress()
		}
		near.Arm(func() { notify(signal) })
		select {
		case <-signal:
		case <-timer.C:
			t.Fatalf("%d of %d frames are not done, and nobody wakes their sender", left.Load(), n)
		}
	}
	stop()
}
