package mesh

import (
	"strings"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/mesh/membership"
	"github.com/tutti-go/tutti/transport"
)

// A heldConn is a Conn that keeps the frames it gets until the test completes them, or until it is
// closed.
type heldConn struct {
	*meteredConn
	held  transport.Queue
	sent  []*transport.Frame // all frames, also those that are done
	ready func()
}

func newHeldConn() *heldConn { return &heldConn{meteredConn: newMeteredConn()} }

func (c *heldConn) Send(f *transport.Frame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held.Push(f)
	c.sent = append(c.sent, f)
}

// complete calls the Done of the frames that the Conn holds.
func (c *heldConn) complete() {
	c.mu.Lock()
	var done transport.Queue
	done, c.held = c.held, done
	c.mu.Unlock()
	finishFrames(&done, nil)
}

func (c *heldConn) Arm(ready func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ready = ready
}

func (c *heldConn) Close() error {
	c.complete()
	c.mu.Lock()
	ready := c.ready
	c.ready = nil
	c.mu.Unlock()
	if ready != nil {
		ready()
	}
	return nil
}

// startReplay starts two ranks, and makes c the Conn below the replayConn of rank 0's link.
func startReplay(t *testing.T, c transport.Conn) (*testJob, *Link) {
	t.Helper()
	r := started(t, 2, func(i int, cfg *Config) { withData(i, cfg); cfg.Redial = time.Hour })
	t.Cleanup(r.close)
	l := r.meshes[0].Link(1)
	l.accept(c, 0)
	return r, l
}

// accept makes c the next Conn of a link. The peer has opened c, and has received the given number
// of frames.
func (l *Link) accept(c transport.Conn, received uint64) {
	if r := l.replay(); r != nil {
		r.drop()
	}
	l.mu.Lock()
	l.state = linkAccepting
	peer := position{epoch: l.epoch + 1, received: received, after: l.epoch}
	l.mu.Unlock()
	l.install(c, linkAccepting, peer)
}

// sendSmall sends n frames that have only a head. The result counts the frames that are done.
func (l *Link) sendSmall(n int) (done *int) {
	done = new(int)
	for range n {
		l.Send(&transport.Frame{Head: []byte("head"), Done: func(error) { *done++ }})
	}
	return done
}

// An answer may come when the Conn of the question has broken and another Conn is open. The answer
// must not end the open Conn.
func TestAStallOfABrokenConnDoesNotEndTheNextOne(t *testing.T) {
	leak.Check(t)
	broken, open := newHeldConn(), newHeldConn()
	r, l := startReplay(t, broken)
	l.sendSmall(1)
	l.accept(open, 0)
	handled := make(chan struct{})
	r.meshes[0].control.post(func(c *control) {
		l.acks = ackState{conn: broken, asked: true, sent: 100, since: time.Now().Add(-time.Hour), answered: true}
		l.handleTraffic(c, membership.RankAnswer{Rank: 1, Body: trafficAnswer{idle: true}.append(nil)})
		close(handled)
	})
	<-handled
	if l.wire() != open || l.closed.Load() {
		t.Errorf("got Conn %p, closed: %v; want the Conn %p, open", l.wire(), l.closed.Load(), open)
	}
	l.failStalled(open, fault.New(fault.LinkLost, "send", 0, "silent"))
	if !l.closed.Load() {
		t.Error("a Conn that stalls, with a frame that has come again: the link is up, want a failure")
	}
}

// The Done of a frame that the next Conn's peer has received must be able to use the link.
func TestDoneRunsWithoutTheLocksOfTheLink(t *testing.T) {
	leak.Check(t)
	_, l := startReplay(t, newHeldConn())
	done := 0
	l.Send(&transport.Frame{Head: []byte("head"), Body: make([]byte, replayCopy), Done: func(err error) {
		done++
		if !l.mu.TryLock() {
			t.Error("Done is called under the link's lock")
			return
		}
		l.mu.Unlock()
		l.Send(&transport.Frame{Head: []byte("head"), Done: func(error) {}})
	}})
	next := newHeldConn()
	l.accept(next, 1)
	if done != 1 || len(next.sent) != 1 {
		t.Errorf("got %d calls of Done and %d frames on the next Conn, want one of each", done, len(next.sent))
	}
}

// A frame must ask for an acknowledgement before the copies are full, so that a stream of small
// frames does not wait for a round trip.
func TestSmallFramesAskBeforeTheWindowIsFull(t *testing.T) {
	leak.Check(t)
	c := newHeldConn()
	_, l := startReplay(t, c)
	const most = replayMemory / replayMinimum
	if done := l.sendSmall(most); *done != most {
		t.Fatalf("%d of %d frames are copied, want all", *done, most)
	}
	asking := 0
	for i, f := range c.sent {
		if f.ID&ackWanted != 0 && i > 0 && i <= most/2 {
			asking++
		}
	}
	if asking != 1 {
		t.Errorf("%d frames in the first half of the window ask for an acknowledgement, want one after the first", asking)
	}
}

// A rank with Config.Redial must log the ranks without it.
func TestARankThatDoesNotDialAgainIsNamed(t *testing.T) {
	leak.Check(t)
	for redial, want := range map[time.Duration]int{0: 0, time.Hour: 1} {
		r := started(t, 2, func(i int, cfg *Config) { withData(i, cfg); cfg.Redial = redial })
		defer r.close()
		if err := r.meshes[0].mayAcceptData(1, 0); err != nil {
			t.Fatal(err)
		}
		r.meshes[0].acceptData(1, newHeldConn(), position{})
		if n := r.logs.count("give all ranks the option\" rank=0 peer=1"); n != want {
			t.Errorf("Redial of %v: got %d lines, want %d: %q", redial, n, want, r.logs.all())
		}
	}
}

// count returns the number of lines with a text.
func (l *logBuffer) count(text string) (n int) {
	for _, line := range l.all() {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// A peer that asks for acknowledgements, and does not read them, must not make them pile up.
func TestAcknowledgementsAreSentOneAtATime(t *testing.T) {
	leak.Check(t)
	const frames = 1000
	var l *Link
	c := newHeldConn()
	c.progress = func() transport.State {
		h := transport.Header{Head: []byte("head"), ID: ackWanted}
		in := &l.replay().in
		in.Buffer(h)
		in.Arrived(h, 0)
		return transport.Moved
	}
	_, l = startReplay(t, c)
	for range frames {
		l.Progress()
	}
	for _, want := range []int{1, 2, 2} {
		if n := len(c.sent); n != want {
			t.Fatalf("got %d acknowledgements, want %d", n, want)
		}
		c.complete()
	}
	if n := c.sent[1].ID; n != frames {
		t.Errorf("the last acknowledgement: got %d frames, want %d", n, frames)
	}
}

// A peer that lies about what it has received, or sends another frame in the place of a broken one,
// must fail the link.
func TestAPeerThatLiesAboutItsFramesIsRefused(t *testing.T) {
	leak.Check(t)
	const frames = 4
	head := transport.Header{Head: []byte("head"), Size: 8}
	resume := func(received uint64) func(*replayConn) error {
		return func(c *replayConn) error { _, err := c.resume(canReplay(newHeldConn()), received); return err }
	}
	again := func(h transport.Header) func(*replayConn) error {
		return func(c *replayConn) error {
			c.in.sink = c.l.sink
			c.in.Buffer(head)
			c.in.Buffer(h)
			return c.l.deferred()
		}
	}
	for _, tc := range []struct {
		name string
		lie  func(*replayConn) error
		want string // "": no error
	}{
		{"it has received what it has acknowledged", resume(2), ""},
		{"it has received all", resume(frames), ""},
		{"it has received less than it has acknowledged", resume(1), errStale.Error()},
		{"it has received more than was sent", resume(frames + 1), "frames that rank 1 has received: got 5, want at most the 4 that were sent"},
		{"it acknowledges more than was sent", func(c *replayConn) error {
			c.handleAck(frames + 1)
			return c.l.deferred()
		}, "rank 1 acknowledges 3 frames more than were sent"},
		{"it acknowledges less than before", func(c *replayConn) error {
			c.handleAck(1)
			return c.l.deferred()
		}, ""},
		{"the same frame comes again", again(head), ""},
		{"a longer frame comes again", again(transport.Header{Head: head.Head, Size: 9}), "has repeated a frame with another"},
		{"a frame with another head comes again", again(transport.Header{Head: []byte("HEAD"), Size: 8}), "has repeated a frame with another"},
		{"an acknowledgement has a body", again(transport.Header{Size: 8}), "has sent an acknowledgement with a body of 8 bytes"},
		{"it does not open the link again", func(c *replayConn) error {
			c.drop()
			c.l.mu.Lock()
			c.l.state = linkAccepting
			c.l.mu.Unlock()
			c.l.install(newHeldConn(), linkAccepting, position{})
			return c.l.err
		}, errNoReplay.Error()},
	} {
		t.Run(tc.name, func(t *testing.T) {
			conn := newHeldConn()
			_, l := startReplay(t, conn)
			l.sendSmall(frames)
			c := l.replay()
			c.handleAck(2)
			conn.complete()
			err := tc.lie(c)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// deferred returns the error of DeferFailure.
func (l *Link) deferred() error {
	if err := l.deferredErr.Load(); err != nil {
		return *err
	}
	return nil
}
