package transporttest

import (
	"bytes"
	"errors"
	"testing"

	"github.com/tutti-go/tutti/transport"
)

func trySendTests() []testCase {
	return []testCase{
		{"TrySend/FramesKeepTheOrder", trySendKeepsOrder},
		{"TrySend/TheMemoryIsTheCallersAgain", trySendReturnsMemory},
		{"TrySend/AFullConnRefuses", trySendRefusesWhenFull},
		{"TrySend/AClosedConnRefuses", trySendAfterClose},
		{"TrySend/CloseTakesBackOnlyWhatNothingIsDoneBehind", trySendCloseKeepsOrder},
		{"TrySend/SpinningProgressIsProgress", spinningProgress},
		{"TrySend/ACopySinkGetsTheSameFrames", copySinkGetsSameFrames},
	}
}

// trySendOrSend sends a frame by TrySend, or by Send if TrySend returns false. If TrySend has sent
// the frame, trySendOrSend overwrites the head and the body, which TrySend no longer needs, and
// returns true.
func (e *endpoint) trySendOrSend(head, body []byte) (s *sentFrame, now bool) {
	s = e.w.frame(head, body, nil)
	headNow, bodyNow := bytes.Clone(head), bytes.Clone(body)
	if now = e.TrySend(headNow, bodyNow); now {
		clear(headNow)
		clear(bodyNow)
		s.doneCount.Add(1)
		return s, true
	}
	e.Send(&s.Frame)
	return s, false
}

// warmUp exchanges frames until a frame is sent inline, because a Conn may refuse inline frames
// while it is being set up. If no frame is sent inline, the transport cannot send inline, and
// warmUp skips the test.
func (e *endpoint) warmUp(far *endpoint) {
	e.w.tb.Helper()
	for range 200 {
		s, inline := e.trySendOrSend(nil, []byte("warm"))
		e.w.exchange([]*sentFrame{s}, far)
		if inline {
			return
		}
	}
	// Reason: TrySend may refuse every frame.
	e.w.tb.Skipf("%T sends nothing inline", e.Conn)
}

func trySendKeepsOrder(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	near.warmUp(far)
	var frames []*sentFrame
	for i := range 300 {
		head, body := pattern(i%(transport.MaxHead+1), uint64(i)), pattern(i*i%9000, uint64(i))
		switch {
		case i%7 == 6:
			frames = append(frames, near.send(head, pattern(i*500, uint64(i))))
		default:
			s, _ := near.trySendOrSend(head, body)
			frames = append(frames, s)
		}
		if i%50 == 49 { // so that there is room again
			w.exchange(frames, far)
			frames = nil
		}
	}
}

func trySendReturnsMemory(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	near.warmUp(far)
	inline := 0
	for i := range 50 {
		s, now := near.trySendOrSend([]byte("head"), pattern(i*7, uint64(i)))
		if now {
			inline++
		}
		w.exchange([]*sentFrame{s}, far)
	}
	if inline == 0 {
		t.Error("none of 50 small frames went at once, though nothing was in their way")
	}
}

// trySendRefusesWhenFull sends to a peer that receives nothing. TrySend must not wait, and must
// refuse a frame if there is no room for it.
func trySendRefusesWhenFull(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	near.warmUp(far)
	var frames []*sentFrame
	bytes, body := 0, pattern(4000, 1)
	for refused := false; !refused; {
		s, now := near.trySendOrSend([]byte("head"), body)
		frames = append(frames, s)
		if bytes += len(body); bytes > 64<<20 {
			t.Fatalf("TrySend has accepted %d bytes, and the peer receives nothing", bytes)
		}
		refused = !now
	}
	s, now := near.trySendOrSend(nil, []byte("behind it"))
	if frames = append(frames, s); now && !frames[len(frames)-2].done() {
		t.Error("TrySend has overtaken a frame that waits")
	}
	w.exchange(frames, far)
}

func trySendAfterClose(t *testing.T, mk Maker) {
	_, near, far := pair(t, mk)
	near.warmUp(far)
	near.Close()
	if near.TrySend([]byte("head"), []byte("late")) {
		t.Error("TrySend on a closed Conn has reported that it sent")
	}
}

// trySendCloseKeepsOrder closes the Conn at several moments after inline frames and one frame by
// Send. The peer must get a prefix of the frames, each whole. The prefix must include the last
// frame that was done.
func trySendCloseKeepsOrder(t *testing.T, mk Maker) {
	w := newCluster(t, mk, 2)
	for turns := range 12 {
		near, far := w.link(0, 1)
		near.warmUp(far)
		far.sink.got = nil
		var frames []*sentFrame
		inline := make(map[*sentFrame]bool)
		for i := range 8 {
			head, body := []byte{byte(i)}, pattern(i*90, uint64(i))
			if i == 4 {
				frames = append(frames, near.send(head, body))
				continue
			}
			s, now := near.trySendOrSend(head, body)
			frames = append(frames, s)
			inline[s] = now
		}
		for range turns * turns {
			near.progress()
		}
		near.Close()
		w.poll("Done of all frames", nil, func() bool { return allDone(frames) })
		for i := len(frames) - 1; i >= 0 && (inline[frames[i]] || frames[i].err != nil); i-- {
			frames[i].err = errUndelivered
		}
		w.poll("the error", []*endpoint{far}, func() bool { return far.err != nil })
		w.arePrefix(frames, far.sink.got)
		far.Close()
		w.ends = nil
	}
}

// errUndelivered marks a frame that the peer need not get after Close: TrySend sent it, or it has
// failed, and no later frame was sent by Send and is done without an error.
var errUndelivered = errors.New("no later frame is done, so this frame may be lost")

// spinningConn is a Conn whose Progress spins.
type spinningConn struct{ transport.Conn }

func (l spinningConn) Progress(in transport.Sink, _ int) (transport.State, error) {
	return l.Conn.Progress(in, 20)
}

func spinningProgress(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	far.Conn = spinningConn{far.Conn}
	var frames []*sentFrame
	for i := range 100 {
		frames = append(frames, near.send(pattern(i, 1), pattern(i*i*20, uint64(i))))
	}
	w.exchange(frames, far)
	near.Close()
	w.until("the failure of the other end", func() bool { return far.err != nil })
}

// A copier is a recorder that may receive a frame in one call.
type copier struct {
	*recorder
	copied int
}

// Copy implements transport.CopySink.
func (r *copier) Copy(h transport.Header, body []byte) {
	if len(body) != h.Size {
		r.w.errorf("%s: Copy got %d bytes of body of %d", r.name, len(body), h.Size)
	}
	if b := r.Buffer(h); b != nil {
		copy(b, body)
	}
	r.Arrived(h, h.Size)
	r.copied++
}

// copyingConn is a Conn whose Progress has a CopySink.
type copyingConn struct {
	transport.Conn
	sink *copier
}

func (c copyingConn) Progress(_ transport.Sink, spins int) (transport.State, error) {
	return c.Conn.Progress(c.sink, spins)
}

func copySinkGetsSameFrames(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	near.warmUp(far)
	sink := &copier{recorder: far.sink}
	far.Conn = copyingConn{far.Conn, sink}
	var frames []*sentFrame
	for i := range 100 {
		if i%2 == 0 {
			frames = append(frames, near.send(pattern(i, 1), pattern(i*i*20, uint64(i))))
			continue
		}
		s, _ := near.trySendOrSend(pattern(i, 1), pattern(i*30, uint64(i)))
		frames = append(frames, s)
	}
	w.exchange(frames, far)
	if sink.copied == 0 {
		t.Error("got no frame by Copy")
	}
}
