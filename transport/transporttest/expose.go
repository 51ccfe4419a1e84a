package transporttest

import (
	"bytes"
	"errors"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

func exposeTests() []testCase {
	return []testCase{
		{"Exposer/FramesComeStraightIn", exposedStraightIn},
		{"Exposer/OrderHoldsAmongAllFrames", exposedOrder},
		{"Exposer/PiecesGoWhereTheyBelong", piecesGoWhere},
		{"Exposer/ManyExposuresBothWays", manyExposures},
		{"Exposer/ReleasedMemoryIsNotWritten", releasedNotWritten},
		{"Exposer/BeyondExposedFails", beyondExposed},
		{"Exposer/CloseFailsWhatIsQueued", exposedClose},
		{"Exposer/NoNotifyFramesAreInBeforeWhatFollows", noNotifyInOrder},
		{"Exposer/NoNotifyMemoryIsNotWrittenAfterRelease", noNotifyReleased},
	}
}

// exposer returns e's Conn as an Exposer. It skips the test if the Conn is not an Exposer.
func (e *endpoint) exposer() transport.Exposer {
	x, ok := e.Conn.(transport.Exposer)
	if !ok {
		// Reason: exposed memory is an optional ability.
		e.w.tb.Skipf("%T is not a transport.Exposer", e.Conn)
	}
	return x
}

// exposable returns n bytes that e can expose. They come from its Transport's Alloc, if there is
// one. All bytes have the given value. The memory is freed at the test's end, after all exposures
// have ended.
func (e *endpoint) exposable(n int, fill byte) []byte {
	e.w.tb.Helper()
	b := make([]byte, n)
	if a, ok := e.w.nodes[e.node].Transport.(transport.Allocator); ok {
		mem, free, err := a.Alloc(n)
		switch {
		case err == nil:
			b = mem
			e.w.tb.Cleanup(func() {
				if err := free(); err != nil {
					e.w.errorf("free of %d bytes: %v", n, err)
				}
			})
		case !errors.Is(err, fault.Refused):
			e.w.tb.Fatalf("Alloc(%d): %v", n, err)
		}
	}
	for i := range b {
		b[i] = fill
	}
	return b
}

// expose exposes memory to the peer and registers it with e's Sink. It skips the test when no
// memory can be exposed.
func (e *endpoint) expose(id uint32, buf []byte) (to transport.Token, release func()) {
	e.w.tb.Helper()
	to, release, err := e.exposer().Expose(id, buf)
	if errors.Is(err, fault.Refused) {
		// Reason: a transport may refuse to expose memory where the system does not permit it.
		e.w.tb.Skipf("%T can expose no memory here: %v", e.Conn, err)
	}
	if err != nil {
		e.w.tb.Fatalf("Expose: %v", err)
	}
	if to == (transport.Token{}) {
		e.w.tb.Fatal("Expose returned the zero Token, which names nothing")
	}
	if e.sink.exposed == nil {
		e.sink.exposed = make(map[uint32][]byte)
	}
	e.sink.exposed[id] = buf
	return to, release
}

// sendTo sends a frame into the exposed memory that the Token names.
func (e *endpoint) sendTo(to transport.Token, id uint32, head, body []byte) *sentFrame {
	s := e.w.frame(head, body, nil)
	s.To, s.ID = to, id
	s.want = arrival{id: id, direct: true, body: body}
	e.Send(&s.Frame)
	return s
}

func exposedStraightIn(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	far.exposer()
	far.sink.buffer = func(transport.Header) []byte {
		t.Error("Buffer was called for a frame with a To")
		return nil
	}
	for i, size := range sizes() {
		buf := far.exposable(size+9, 0xA5)
		to, release := far.expose(uint32(i)*0x01010101, buf)
		s := near.sendTo(to, uint32(i)*0x01010101, []byte("lost"), pattern(size, uint64(i)))
		w.exchange([]*sentFrame{s}, far)
		release()
		if !bytes.Equal(buf[size:], bytes.Repeat([]byte{0xA5}, 9)) {
			t.Errorf("the bytes after a body of %d bytes have changed; want only the body written", size)
		}
	}
}

// exposedOrder mixes frames into exposed memory with frames into buffers of the Sink. All of them
// must arrive in the order of Send.
func exposedOrder(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	var frames []*sentFrame
	for i := range 40 {
		body := pattern(i*2500, uint64(i))
		if i%3 == 0 {
			frames = append(frames, near.send([]byte{byte(i)}, body))
			continue
		}
		to, release := far.expose(uint32(i), far.exposable(len(body), 0))
		defer release()
		frames = append(frames, near.sendTo(to, uint32(i), nil, body))
	}
	w.exchange(frames, far)
}

// piecesGoWhere sends a body in fragments, the last fragment first. Each fragment must arrive at
// its offset.
func piecesGoWhere(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	body, mem := pattern(900_001, 1), far.exposable(900_001, 0)
	to, release := far.expose(3, mem)
	defer release()
	var frames []*sentFrame
	for _, cut := range [][2]int{{500_000, 900_001}, {7, 500_000}, {1, 7}, {1, 1}, {0, 1}} {
		s := w.frame(nil, body[cut[0]:cut[1]], nil)
		s.To, s.Offset, s.ID, s.want.id, s.want.direct = to, cut[0], 3, 3, true
		near.Send(&s.Frame)
		frames = append(frames, s)
	}
	w.until("the pieces", func() bool { return len(far.sink.got) == len(frames) && allDone(frames) })
	if !bytes.Equal(mem, body) {
		t.Errorf("the exposed memory differs from the body: the first different byte is %d", firstDifference(mem, body))
	}
}

// manyExposures writes several times into each of several exposures, in both directions. The memory
// of each exposure must hold the body of each round.
func manyExposures(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	const exposures, rounds, size = 8, 4, 50_000
	var tokens [2][exposures]transport.Token
	ends := [2]*endpoint{near, far}
	for i, e := range ends {
		for id := range uint32(exposures) {
			to, release := e.expose(id, e.exposable(size, 0))
			defer release()
			tokens[i][id] = to
		}
	}
	for round := range rounds {
		var frames [2][]*sentFrame
		for id := range uint32(exposures) {
			for i, e := range ends {
				body := pattern(size, uint64(id)<<8|uint64(round)<<1|uint64(i))
				frames[i] = append(frames[i], e.sendTo(tokens[1-i][id], id, nil, body))
			}
		}
		start := [2]int{len(near.sink.got), len(far.sink.got)}
		w.until("the frames", func() bool {
			return len(near.sink.got) == start[0]+exposures && len(far.sink.got) == start[1]+exposures
		})
		w.compare(frames[0], far.sink.got[start[1]:])
		w.compare(frames[1], near.sink.got[start[0]:])
	}
}

// releasedNotWritten uses a Token after release. The Conn may fail, but nothing may write into the
// memory.
func releasedNotWritten(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	buf := far.exposable(100_000, 0)
	to, release := far.expose(5, buf)
	w.exchange([]*sentFrame{near.sendTo(to, 5, nil, pattern(len(buf), 1))}, far)
	release()
	mine := bytes.Repeat([]byte{0x5A}, len(buf))
	copy(buf, mine)
	s := near.sendTo(to, 5, nil, pattern(len(buf), 2))
	w.until("the failure", func() bool { return s.done() && far.err != nil })
	if !bytes.Equal(buf, mine) {
		t.Error("memory was written after its release")
	}
}

// beyondExposed sends frames that do not fit into the exposed memory, because of their size or
// their offset. The Conn must fail, and nothing may be written outside that memory.
func beyondExposed(t *testing.T, mk Maker) {
	for _, tc := range []struct {
		name     string
		at, size int
	}{{"too large", 0, 501}, {"too far", 400, 101}, {"behind", 501, 0}, {"before", -1, 10}, {"far away", 1 << 62, 1}} {
		t.Run(tc.name, func(t *testing.T) {
			w, near, far := pair(t, mk)
			whole := far.exposable(1000, 0xA5)
			to, release := far.expose(5, whole[:500])
			defer release()
			s := w.frame(nil, pattern(tc.size, 1), nil)
			s.To, s.Offset, s.ID = to, tc.at, 5
			near.Send(&s.Frame)
			w.until("the failure", func() bool { return s.done() && far.err != nil })
			if !bytes.Equal(whole[500:], bytes.Repeat([]byte{0xA5}, 500)) {
				t.Error("the memory after the exposed memory was written")
			}
			if len(far.sink.got) > 0 {
				t.Error("the frame arrived")
			}
		})
	}
}

func exposedClose(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	to, release := far.expose(5, far.exposable(32<<20, 0))
	defer release()
	s := near.sendTo(to, 5, nil, make([]byte, 32<<20))
	late := near.sendTo(to, 5, nil, make([]byte, 32<<20))
	near.Close()
	w.until("Done", func() bool { return s.done() && late.done() && far.err != nil })
	for _, err := range []error{s.err, late.err} {
		if err != nil {
			w.isClosed("Done", err)
		}
	}
}
