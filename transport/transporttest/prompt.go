package transporttest

import (
	"bytes"
	"errors"
	"testing"

	"github.com/tutti-go/tutti/transport"
)

func promptPromises() []promise {
	return []promise{
		{"Prompter/FramesKeepTheOrder", promptsKeepOrder},
		{"Prompter/TheMemoryIsTheCallersAgain", promptsMemoryIsFree},
		{"Prompter/AFullConnRefuses", promptsAreRefused},
		{"Prompter/AClosedConnRefuses", promptsClosed},
		{"Prompter/CloseTakesBackOnlyWhatNothingIsDoneBehind", promptsTakenBack},
		{"Prompter/LingerIsProgress", lingerIsProgress},
		{"Prompter/ATakerGetsTheSameFrames", takersGetTheSame},
	}
}

// prompter is e's Conn as a Prompter; the test is skipped when it is none.
func (e *end) prompter() transport.Prompter {
	p, ok := e.Conn.(transport.Prompter)
	if !ok {
		e.w.tb.Skipf("%T is not a transport.Prompter", e.Conn)
	}
	return p
}

// sendNow sends by SendNow, and by Send if that refuses; now tells which it was. The
// memory of what SendNow has sent is used for something else at once.
func (e *end) sendNow(head, body []byte) (s *sent, now bool) {
	s = e.w.frame(head, body, nil)
	headNow, bodyNow := bytes.Clone(head), bytes.Clone(body)
	if now = e.prompter().TrySend(headNow, bodyNow); now {
		clear(headNow)
		clear(bodyNow)
		s.ended.Add(1)
		return s, true
	}
	e.Send(&s.Frame)
	return s, false
}

// warm exchanges frames until one goes at once, which a Conn need not let any do while
// it is being set up.
func (e *end) warm(far *end) {
	e.w.tb.Helper()
	e.prompter()
	e.w.until("a small frame that goes at once", func() bool {
		s, now := e.sendNow(nil, []byte("warm"))
		e.w.exchange([]*sent{s}, far)
		return now
	})
}

func promptsKeepOrder(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	near.warm(far)
	var frames []*sent
	for i := range 300 {
		head, body := pattern(i%(transport.MaxHead+1), uint64(i)), pattern(i*i%9000, uint64(i))
		switch {
		case i%7 == 6:
			frames = append(frames, near.send(head, pattern(i*500, uint64(i))))
		default:
			s, _ := near.sendNow(head, body)
			frames = append(frames, s)
		}
		if i%50 == 49 { // so that there is room again
			w.exchange(frames, far)
			frames = nil
		}
	}
}

func promptsMemoryIsFree(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	near.warm(far)
	prompt := 0
	for i := range 50 {
		s, now := near.sendNow([]byte("head"), pattern(i*7, uint64(i)))
		if now {
			prompt++
		}
		w.exchange([]*sent{s}, far)
	}
	if prompt == 0 {
		t.Error("none of 50 small frames went at once, though nothing was in their way")
	}
}

// A peer that takes nothing must not make SendNow wait, nor take more than there is
// room for.
func promptsAreRefused(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	near.warm(far)
	var frames []*sent
	bytes, body := 0, pattern(4000, 1)
	for refused := false; !refused; {
		s, now := near.sendNow([]byte("head"), body)
		frames = append(frames, s)
		if bytes += len(body); bytes > 64<<20 {
			t.Fatalf("SendNow has taken %d bytes that nobody takes", bytes)
		}
		refused = !now
	}
	s, now := near.sendNow(nil, []byte("behind it"))
	if frames = append(frames, s); now && !frames[len(frames)-2].done() {
		t.Error("SendNow has overtaken a frame that waits")
	}
	w.exchange(frames, far)
}

func promptsClosed(t *testing.T, mk Maker) {
	_, near, far := pair(t, mk)
	near.warm(far)
	p := near.prompter()
	near.Close()
	if p.TrySend([]byte("head"), []byte("late")) {
		t.Error("SendNow on a closed Conn has reported that it sent")
	}
}

// promptsTakenBack closes at several moments behind frames that went at once, with one
// among them that has a Done: the peer gets the first ones of them, whole, and at least
// those up to the last one that was Done.
func promptsTakenBack(t *testing.T, mk Maker) {
	w := newWorld(t, mk, 2)
	for turns := range 12 {
		near, far := w.link(0, 1)
		near.warm(far)
		far.sink.got = nil
		var frames []*sent
		prompt := make(map[*sent]bool)
		for i := range 8 {
			head, body := []byte{byte(i)}, pattern(i*90, uint64(i))
			if i == 4 {
				frames = append(frames, near.send(head, body))
				continue
			}
			s, now := near.sendNow(head, body)
			frames = append(frames, s)
			prompt[s] = now
		}
		for range turns * turns {
			near.progress()
		}
		near.Close()
		w.poll("Done of all frames", nil, func() bool { return allDone(frames) })
		for i := len(frames) - 1; i >= 0 && (prompt[frames[i]] || frames[i].err != nil); i-- {
			frames[i].err = errTakenBack
		}
		w.poll("the error", []*end{far}, func() bool { return far.err != nil })
		w.arePrefix(frames, far.sink.got)
		far.Close()
		w.ends = nil
	}
}

var errTakenBack = errors.New("nothing was said behind it that is Done")

// lingering is a Conn whose Progress is its Linger.
type lingering struct{ transport.Conn }

func (l lingering) Progress(in transport.Sink) (transport.State, error) {
	return l.Conn.(transport.Prompter).Linger(in, 20)
}

func lingerIsProgress(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	far.prompter()
	near.warm(far)
	far.Conn = lingering{far.Conn}
	var frames []*sent
	for i := range 100 {
		frames = append(frames, near.send(pattern(i, 1), pattern(i*i*20, uint64(i))))
	}
	w.exchange(frames, far)
	near.Close()
	w.until("the failure of the other end", func() bool { return far.err != nil })
}

// A taker is a recorder that may get frames in one call.
type taker struct {
	*recorder
	taken int
}

// Copy implements transport.Taker.
func (r *taker) Copy(h transport.Header, body []byte) {
	if len(body) != h.Size {
		r.w.errorf("%s: Take got %d bytes of body of %d", r.name, len(body), h.Size)
	}
	if b := r.Buffer(h); b != nil {
		copy(b, body)
	}
	r.Arrived(h, h.Size)
	r.taken++
}

// taking is a Conn whose Progress has a Sink that is a Taker.
type taking struct {
	transport.Conn
	sink *taker
}

func (c taking) Progress(transport.Sink) (transport.State, error) { return c.Conn.Progress(c.sink) }

func takersGetTheSame(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	far.prompter()
	near.warm(far)
	sink := &taker{recorder: far.sink}
	far.Conn = taking{far.Conn, sink}
	var frames []*sent
	for i := range 100 {
		if i%2 == 0 {
			frames = append(frames, near.send(pattern(i, 1), pattern(i*i*20, uint64(i))))
			continue
		}
		s, _ := near.sendNow(pattern(i, 1), pattern(i*30, uint64(i)))
		frames = append(frames, s)
	}
	w.exchange(frames, far)
	if sink.taken == 0 {
		t.Error("no frame came by Take")
	}
}
