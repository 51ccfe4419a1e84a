package transporttest

import (
	"bytes"
	"testing"

	"github.com/tutti-go/tutti/transport"
)

// exposeNoNotify exposes memory with the ID NoNotify. It skips the test if the Conn refuses.
func (e *endpoint) exposeNoNotify(buf []byte) (to transport.Token, release func()) {
	e.w.tb.Helper()
	return e.expose(transport.NoNotify, buf)
}

// notified returns the frames that e has received. It omits frames into memory with the ID
// NoNotify, because an Exposer need not report them.
func (e *endpoint) notified() (got []arrival) {
	for _, a := range e.sink.got {
		if a.id != transport.NoNotify {
			got = append(got, a)
		}
	}
	return got
}

// noNotifyInOrder writes into memory several times. All bytes must be in the memory when the frame
// sent after them arrives, whether the writes were reported or not.
func noNotifyInOrder(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	const size, piece = 300_000, 60_000
	mem := far.exposable(size, 0)
	to, release := far.exposeNoNotify(mem)
	defer release()
	for round := range 4 {
		body := pattern(size, uint64(round))
		var frames []*sentFrame
		for at := 0; at < size; at += piece {
			s := w.frame(nil, body[at:at+piece], nil)
			s.To, s.Offset, s.ID = to, at, transport.NoNotify
			near.Send(&s.Frame)
			frames = append(frames, s)
		}
		frames = append(frames, near.send([]byte{byte(round)}, nil))
		w.until("the next frame", func() bool { return len(far.notified()) > round || far.err != nil })
		if got := far.notified(); far.err != nil || len(got) != round+1 || !bytes.Equal(got[round].head, []byte{byte(round)}) {
			t.Fatalf("round %d: frames %v, %v", round, got, far.err)
		}
		if !bytes.Equal(mem, body) {
			t.Fatalf("round %d: the memory differs from the body: the first different byte is %d", round, firstDifference(mem, body))
		}
		w.until("Done", func() bool { return allDone(frames) })
		for i, s := range frames {
			if s.err != nil {
				t.Errorf("round %d: Done of frame %d got %v", round, i, s.err)
			}
		}
	}
}

// noNotifyReleased releases memory while the peer is writing into it without notification. Nothing
// may write into the memory after that.
func noNotifyReleased(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	buf := far.exposable(1<<20, 0)
	to, release := far.exposeNoNotify(buf)
	var frames []*sentFrame
	for i := range 8 {
		s := w.frame(nil, pattern(len(buf), uint64(i)), nil)
		s.To, s.ID = to, transport.NoNotify
		near.Send(&s.Frame)
		frames = append(frames, s)
	}
	w.until("the first write", func() bool { return frames[0].done() })
	release()
	mine := bytes.Repeat([]byte{0x5A}, len(buf))
	copy(buf, mine)
	last := near.sendTo(to, transport.NoNotify, nil, pattern(len(buf), 9)) // sent after the release
	w.until("the failure", func() bool { return last.done() && allDone(frames) && far.err != nil })
	if !bytes.Equal(buf, mine) {
		t.Errorf("the memory was written after its release, from byte %d on", firstDifference(buf, mine))
	}
}
