package verbs

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/verbs/softdevice"
)

// trySend sends from end 0 inline.
func (b *connPair) trySend(head, body string) {
	b.Helper()
	if !b.ends[0].TrySend([]byte(head), []byte(body)) {
		b.Fatalf("%q does not go at once, though nothing is in its way", body)
	}
}

// checkUnsent checks the stall report of end 0.
func (b *connPair) checkUnsent(want int) (since time.Time) {
	b.Helper()
	n, since := b.ends[0].Unsent()
	// A time left from before would make later bytes look old.
	if n != want || since.IsZero() != (n == 0) {
		b.Errorf("Unsent() = %d, %v; want %d bytes, and a time if there are any", n, since, want)
	}
	return since
}

// A frame of TrySend has no completion until Unsent requests one. A healthy link must not look
// stalled, however often it is asked.
func TestUnsentCountsTrySendUntilAcknowledged(t *testing.T) {
	b := newConnPair(t, softdevice.NewFabric(), Options{})
	b.trySend("head", "body")
	b.trySend("", "more")
	b.until("the frames", func() bool { return b.sinks[1].n == 2 })
	since := b.checkUnsent(12)
	if again := b.checkUnsent(12); !again.Equal(since) {
		t.Errorf("nothing has come between %v and %v", since, again)
	}
	b.until("a completion", func() bool { n, _ := b.ends[0].Unsent(); return n == 0 })
	if posted := b.ends[0].postedCount(); posted != 3 {
		t.Errorf("%d works are posted for two frames, want one more", posted)
	}
	b.checkUnsent(0)
	b.trySend("", "again")
	b.checkUnsent(5)
	b.until("a completion", func() bool { n, _ := b.ends[0].Unsent(); return n == 0 })
}

func TestLostCompletionOfTrySendCountsAsUnsent(t *testing.T) {
	b := newConnPair(t, softdevice.NewFabric(), Options{})
	near, _ := b.queuePairs()
	b.trySend("head", "body")
	since := b.checkUnsent(8)
	near.LoseCompletions()
	b.until("the frame", func() bool { return b.sinks[1].n == 1 })
	if again := b.checkUnsent(8); !again.Equal(since) {
		t.Errorf("Unsent says that something has come at %v, since %v", again, since)
	}
}

// The transfer of a body may take longer than the limit on stalls. So each acknowledged write must
// count as progress.
func TestUnsentShrinksWithEachWriteOfABody(t *testing.T) {
	b := newConnPair(t, softdevice.NewFabric(), Options{Depth: minDepth})
	const size = 10 * segmentSize
	_, to, release := b.expose(size)
	defer release()
	done := b.send(&transport.Frame{To: to, ID: 1, Body: make([]byte, size)})
	near := b.ends[0]
	near.mu.Lock()
	near.unsent.since = time.Time{} // long ago
	near.mu.Unlock()
	for range 5 { // the peer is not polled, so it grants no credits meanwhile
		near.Progress(&b.sinks[0], 1)
	}
	near.mu.Lock()
	moved := !near.unsent.since.IsZero()
	near.mu.Unlock()
	n, _ := near.Unsent()
	if n <= 0 || n >= size || !moved {
		t.Errorf("%d bytes of %d are unsent, and the time of the last one is known: %v", n, size, moved)
	}
	if err := <-waitDone(b, done); err != nil {
		t.Error(err)
	}
	b.checkUnsent(0)
}

// A message without a body can also be stuck, so Unsent must count heads.
func TestUnsentCountsHeads(t *testing.T) {
	b := newConnPair(t, softdevice.NewFabric(), Options{})
	done := b.send(&transport.Frame{Head: []byte("head")})
	b.checkUnsent(4)
	if err := <-waitDone(b, done); err != nil {
		t.Error(err)
	}
	b.checkUnsent(0)
}

func TestUnsentDropsDeclinedBodies(t *testing.T) {
	b := newConnPair(t, softdevice.NewFabric(), Options{})
	done := b.send(&transport.Frame{Head: []byte("head"), Body: make([]byte, 4<<20)})
	b.checkUnsent(4 + 4<<20)
	within(t, "the frame's end", func() bool {
		b.ends[0].Progress(&b.sinks[0], 1)
		b.ends[1].Progress(decliningSink{}, 1)
		return len(done) > 0
	})
	if err := <-done; err != nil {
		t.Error(err)
	}
	b.checkUnsent(0)
}

// decliningSink declines every body.
type decliningSink struct{}

func (decliningSink) Buffer(transport.Header) []byte { return nil }
func (decliningSink) Arrived(transport.Header, int)  {}

// A recordingSink is a Sink that keeps all bodies as text.
type recordingSink struct {
	countingSink
	got []string
}

func (s *recordingSink) Arrived(h transport.Header, n int) {
	s.countingSink.Arrived(h, n)
	if n == h.Size {
		s.got = append(s.got, string(s.body))
	}
}

// TestTrySendArrivesWholeOrNotAtAll closes or breaks a Conn after a frame of TrySend. The frame
// must arrive whole or not at all. Its arrival is certain only once a later frame is Done.
func TestTrySendArrivesWholeOrNotAtAll(t *testing.T) {
	for name, c := range map[string]struct {
		// The device fails at this point of the first frame. If the point is not set, this end
		// closes.
		at    softdevice.Break
		later bool // a second frame is sent, and is Done
		want  []string
	}{
		// The software device sends a frame at once. A real device may not have sent the frame
		// before the Close.
		"a Close":                             {want: []string{"at once"}},
		"a Close after the second frame":      {later: true, want: []string{"at once", "later"}},
		"a failure before the frame has left": {at: softdevice.BreakBefore},
		"a failure after the frame has left":  {at: softdevice.BreakAfter, want: []string{"at once"}},
		"a failure, and a second frame":       {at: softdevice.BreakBefore, later: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newConnPair(t, softdevice.NewFabric(), Options{})
			if c.at != softdevice.NoBreak {
				b.fabric.SetHook(func(softdevice.Action) softdevice.Break { return c.at })
			}
			b.trySend("", "at once")
			b.fabric.SetHook(nil)
			near, later := b.ends[0], make(chan error, 1)
			if c.later {
				near.Send(&transport.Frame{Body: []byte("later"), Done: func(err error) { later <- err }})
				within(t, "Done of the second frame", func() bool {
					near.Progress(&b.sinks[0], 1)
					return len(later) > 0
				})
			}
			want := fault.LinkLost
			if c.at == softdevice.NoBreak {
				want = fault.Closed
				near.Close()
			}
			var far recordingSink
			var ended [2]error
			within(t, "the end of both ends", func() bool {
				_, ended[0] = near.Progress(&b.sinks[0], 1)
				_, ended[1] = b.ends[1].Progress(&far, 1)
				return ended[0] != nil && ended[1] != nil
			})
			if !errors.Is(ended[0], want) || !slices.Equal(far.got, c.want) {
				t.Errorf("this end got %v, want %v; the peer got %q, want %q", ended[0], want, far.got, c.want)
			}
			if c.later {
				if err := <-later; (err == nil) != (c.at == softdevice.NoBreak) {
					t.Errorf("Done of the second frame got %v", err)
				}
			}
			if near.TrySend(nil, []byte("late")) {
				t.Error("TrySend has sent on a Conn that has ended")
			}
			b.checkUnsent(0)
		})
	}
}

// If a device refuses a work request, only the caller of post gets the error. But an end that
// sleeps must also be woken.
func TestRefusedWorkFiresArm(t *testing.T) {
	for name, post := range map[string]func(b *connPair){
		"of TrySend": func(b *connPair) { b.trySend("", "refused") },
		"of Unsent":  func(b *connPair) { b.ends[0].Unsent() },
	} {
		t.Run(name, func(t *testing.T) {
			b := newConnPair(t, softdevice.NewFabric(), Options{})
			near, _ := b.queuePairs()
			b.trySend("", "sent")
			b.until("the frame", func() bool { return b.sinks[1].n == 1 })
			b.until("quiet", func() bool {
				state, err := b.ends[0].Progress(&b.sinks[0], 1)
				return state == transport.Idle && err == nil && !b.ends[0].setupPending.Load()
			})
			rung := make(chan struct{})
			b.ends[0].Arm(func() { close(rung) })
			near.RefuseWork()
			post(b)
			select {
			case <-rung:
			case <-time.After(20 * time.Second):
				t.Fatal("it sleeps on")
			}
			if errs := b.waitFailure(); !errors.Is(errs[0], fault.LinkLost) {
				t.Errorf("got %v, want %v", errs[0], fault.LinkLost)
			}
		})
	}
}
