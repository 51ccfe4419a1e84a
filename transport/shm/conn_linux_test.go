package shm

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/transport"
)

func TestSteadyStateAllocatesNothing(t *testing.T) {
	near, far := pair(t)
	far.Admit()
	in := &bufferSink{buf: make([]byte, 1<<20)}
	for _, size := range []int{8, 5000, 100_000, 1 << 20} {
		out := newFrame(size)
		turn := func() {
			near.Send(out)
			for n := in.frames; in.frames == n; {
				far.Progress(in, 1)
				near.Progress(in, 1)
			}
		}
		turn()
		if got := testing.AllocsPerRun(100, turn); got > 0 {
			t.Errorf("%d bytes: %v allocations, want none", size, got)
		}
	}
}

// fillRing sends until the ring is full, and returns how many frames it has sent.
func fillRing(tb testing.TB, c *conn, done *atomic.Int32) (sent int) {
	for ; sent < 100; sent++ {
		c.Send(&transport.Frame{Body: make([]byte, 1<<20), Done: func(error) { done.Add(1) }})
		for range 100 {
			c.Progress(new(bufferSink), 1)
		}
		if bytes, _ := c.Unsent(); bytes > 0 {
			return sent + 1
		}
	}
	tb.Fatal("the ring takes any number of frames")
	return 0
}

func TestUnsentReportsSinceWhenTheRingIsFull(t *testing.T) {
	near, far := pair(t)
	far.Admit()
	if bytes, since := near.Unsent(); bytes != 0 || !since.IsZero() {
		t.Fatalf("got %d bytes since %v before anything was sent", bytes, since)
	}
	start := time.Now()
	var done atomic.Int32
	sent := fillRing(t, near, &done)
	bytes, first := near.Unsent()
	if bytes <= 0 || bytes > sent<<20 || first.Before(start) || first.After(time.Now()) {
		t.Fatalf("got %d bytes since %v", bytes, first)
	}
	near.Progress(new(bufferSink), 1) // the ring is still full, so this call makes no progress
	if _, since := near.Unsent(); !since.Equal(first) {
		t.Errorf("a refused byte moved the time from %v to %v", first, since)
	}
	for in := new(bufferSink); in.frames < sent; {
		far.Progress(in, 1)
		near.Progress(in, 1)
		if left, since := near.Unsent(); left > 0 && left < bytes && !since.After(first) {
			t.Fatalf("%d bytes of %d are left, but the time is still %v", left, bytes, since)
		}
	}
	if bytes, since := near.Unsent(); bytes != 0 || !since.IsZero() {
		t.Errorf("got %d bytes since %v when all were sent", bytes, since)
	}
}

// Frames without bodies must count as progress, although they have no bytes of body.
func TestUnsentCountsHeadsAsProgress(t *testing.T) {
	var o outbox
	for range 2 {
		o.queue.Push(item{f: &transport.Frame{Head: []byte("head")}})
	}
	longAgo := time.Now().Add(-time.Minute)
	o.stalledSince = longAgo // the ring was full
	o.advance(0, false)
	if _, since := o.unsent(); !since.Equal(longAgo) {
		t.Errorf("nothing was taken, and the time is %v after", since.Sub(longAgo))
	}
	o.advance(0, true)
	if bytes, since := o.unsent(); bytes == 0 || since.Equal(longAgo) {
		t.Errorf("one of two heads went: %d bytes wait, since as long ago as before: %v", bytes, since.Equal(longAgo))
	}
}

// An armed Conn whose ring is full must wake when there is space, also if the ring was filled after
// Arm. The Conn must not wake for each chunk.
func TestRoomWakesOnlyABlockedSender(t *testing.T) {
	near, far := pair(t)
	far.Admit()
	woken := make(chan struct{}, 1)
	var ran, done atomic.Int32
	near.Arm(func() { ran.Add(1); woken <- struct{}{} })
	sent := fillRing(t, near, &done)
	in, wakes := new(bufferSink), 0
	for deadline := time.Now().Add(testTimeout); int(done.Load()) < sent; {
		far.Progress(in, 1)
		select {
		case <-woken:
			wakes++
			for state := transport.Moved; state == transport.Moved; {
				state, _ = near.Progress(in, 1)
			}
			near.Arm(func() { woken <- struct{}{} })
		default:
			if time.Now().After(deadline) {
				t.Fatal("no wake-up for room")
			}
		}
	}
	if most := 8 * sent; wakes == 0 || wakes > most {
		t.Errorf("%d wake-ups for %d MiB, want at most %d", wakes, sent, most)
	}
}

// A failed Conn must report its failure even if the peer sends without end.
func TestEndlessPeerDoesNotKeepAFailedConnAlive(t *testing.T) {
	near, far := pair(t)
	far.Admit()
	far.fail(failure(fault.LinkLost, "test", errors.New("as if writing had failed")))
	out := newFrame(1000)
	err := error(nil)
	for deadline := time.Now().Add(testTimeout); err == nil; {
		near.Send(out)
		_, err = far.Progress(new(bufferSink), 1)
		if time.Now().After(deadline) {
			t.Fatal("the failure is never reported")
		}
	}
}

// A Done that sends its frame again, inside Send, must not exhaust the stack while the peer
// receives everything.
func TestDoneThatSendsAgainStaysShallow(t *testing.T) {
	near, far := pair(t)
	far.Admit()
	in := new(bufferSink)
	depth, deepest, left := 0, 0, 100_000
	f := newFrame(8)
	f.Done = func(error) {
		depth++
		deepest = max(deepest, depth)
		if left--; left > 0 {
			far.Progress(in, 1)
			near.Send(f)
		}
		depth--
	}
	near.Send(f)
	for left > 0 {
		far.Progress(in, 1)
		near.Progress(in, 1)
	}
	if deepest > maxInline+1 {
		t.Errorf("Send was called from itself %d deep", deepest)
	}
}

// Conns are closed at random moments while other goroutines use them. The memory must be unmapped
// once, when no goroutine uses it any more. A later access would be fatal.
func TestClosedMemoryIsNotTouched(t *testing.T) {
	leak.Check(t)
	a, name, conns := serveForTest(t, Options{})
	_ = a
	here, _ := detectLocality()
	b := New(Options{})
	defer b.Close()
	for range 300 {
		near, err := b.Dial(testContext(t), address{here, name}.String())
		if err != nil {
			t.Fatal(err)
		}
		hammer(near, receive(t, conns))
	}
}

// hammer uses both ends on many goroutines until both have been closed.
func hammer(ends ...transport.Conn) {
	var wg sync.WaitGroup
	for _, c := range ends {
		if g, ok := c.(transport.Pending); ok {
			g.Admit()
		}
		for range 2 {
			wg.Go(func() {
				in := new(floodSink)
				for {
					if _, err := c.Progress(in, 1); err != nil {
						return
					}
					runtime.Gosched()
				}
			})
		}
		wg.Go(func() {
			for i := range 20 {
				var failed atomic.Bool
				c.Send(&transport.Frame{Head: []byte("head"), Body: make([]byte, 3000*i), Done: func(err error) { failed.Store(err != nil) }})
				c.(*conn).Unsent()
				if failed.Load() {
					return
				}
			}
		})
		wg.Go(func() {
			for range 20 {
				c.Arm(func() {})
			}
			c.Close()
		})
	}
	wg.Wait()
}
