package rendezvous

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// An inlineTransport has Conns with TrySend, which deliver small frames to a CopySink. Package
// memory has no such Conns, because its frames refer to the sender's memory until they are
// delivered.
type inlineTransport struct{ transport.Transport }

func (h inlineTransport) Serve(in net.Listener, accept func(transport.Conn)) (string, error) {
	return h.Transport.Serve(in, func(c transport.Conn) { accept(&inlineConn{Conn: c}) })
}

func (h inlineTransport) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := h.Transport.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &inlineConn{Conn: c}, nil
}

type inlineConn struct {
	transport.Conn
	refuse       bool // the next TrySend returns false
	sends, spins hook
	sink         bufferingSink
}

// A hook is a function that runs once, in the next call of the method for which it is set.
type hook struct{ atomic.Pointer[func()] }

func (m *hook) set(do func()) { m.Store(&do) }

func (m *hook) run() {
	if do := m.Swap(nil); do != nil {
		(*do)()
	}
}

func (c *inlineConn) TrySend(head, body []byte) bool {
	c.sends.run()
	if c.refuse {
		c.refuse = false
		return false
	}
	c.Send(&transport.Frame{Head: bytes.Clone(head), Body: bytes.Clone(body), Done: func(error) {}})
	return true
}

func (c *inlineConn) Progress(in transport.Sink, spins int) (state transport.State, err error) {
	c.spins.run()
	c.sink.Sink = in
	for range spins {
		if state, err = c.Conn.Progress(&c.sink, 1); state != transport.Idle || err != nil {
			break
		}
	}
	return state, err
}

// A bufferingSink passes small frames through its own memory.
type bufferingSink struct {
	transport.Sink
	room [maxInline]byte
	own  bool
}

func (s *bufferingSink) Buffer(h transport.Header) []byte {
	_, ok := s.Sink.(transport.CopySink)
	if s.own = ok && h.Size <= len(s.room); s.own {
		return s.room[:]
	}
	return s.Sink.Buffer(h)
}

func (s *bufferingSink) Arrived(h transport.Header, n int) {
	if s.own {
		s.own = false
		s.Sink.(transport.CopySink).Copy(h, s.room[:h.Size])
		return
	}
	s.Sink.Arrived(h, n)
}

// newInlineTeam returns two ranks that have exchanged a message.
func newInlineTeam(t *testing.T, cfg Config) (tm *team, a, b *MatchContext) {
	t.Helper()
	tm = newTeamWith(t, 2, cfg, func(w transport.Transport) transport.Transport { return inlineTransport{w} })
	tm.connect(t, 0, 1)
	tm.connect(t, 1, 0)
	return tm, tm.engines[0].Open(5, []int{0, 1}), tm.engines[1].Open(5, []int{0, 1})
}

// A receive on the fast path must make no request. Another goroutine may move the message into the
// table before the receive polls. The message then takes the ordinary path. So the test tries many
// times and requires one receive on the fast path.
func TestFastPathNeedsNoRequest(t *testing.T) {
	const tries = 1000
	tm, a, b := newInlineTeam(t, Config{})
	buf := make([]byte, maxInline)
	short := func(i, size int) bool {
		body := bytes.Repeat([]byte{byte(i + 1)}, size)
		before := [2]*Request{tm.engines[0].freeRequests, tm.engines[1].freeRequests}
		if !a.TrySend(1, 7, 99, body) {
			t.Fatalf("%d bytes are not sent at once, though nothing has precedence", size)
		}
		n, ok := b.TryRecv(0, 7, 99, buf)
		if !ok {
			if _, err := b.Recv(t.Context(), nil, 0, 7, 99, buf); err != nil {
				t.Fatal(err)
			}
			return false
		}
		if !bytes.Equal(buf[:n], body) {
			t.Fatalf("of %d bytes got %d, or others", size, n)
		}
		if after := [2]*Request{tm.engines[0].freeRequests, tm.engines[1].freeRequests}; after != before {
			t.Error("an Op was used")
		}
		return true
	}
	for i, size := range []int{0, 1, 4, 1000, maxInline} {
		try := 1
		for ; !short(i, size); try++ {
			if try == tries {
				t.Fatalf("none of %d messages of %d bytes took the fast path", tries, size)
			}
		}
	}
	if a.TrySend(1, 7, 99, make([]byte, maxInline+1)) {
		t.Error("a message went at once that is not small")
	}
}

func TestTrySendMatchesAnyRecv(t *testing.T) {
	tm, a, b := newInlineTeam(t, Config{})
	for _, from := range []int{0, Any} {
		req := b.PostRecv(from, Any, 0, make([]byte, 4))
		if !a.TrySend(1, 7, 99, []byte("post")) {
			t.Fatal("the message does not go at once")
		}
		if err := tm.engines[1].Wait(t.Context(), req, nil); err != nil || string(req.buf) != "post" {
			t.Errorf("got %q, %v", req.buf, err)
		}
		req.Free()
	}
}

// TryRecv must report false if an earlier message or an earlier receive has precedence, or if the
// context, the engine or the peer has ended.
func TestTryRecvYieldsToAllThatHasPrecedence(t *testing.T) {
	for name, before := range map[string]func(tm *team, a, b *MatchContext){
		"a receive for the same messages": func(_ *team, _, b *MatchContext) { b.PostRecv(0, 7, 0, make([]byte, 4)) },
		"a receive from any source":       func(_ *team, _, b *MatchContext) { b.PostRecv(Any, 7, 0, make([]byte, 4)) },
		"a receive of any tag":            func(_ *team, _, b *MatchContext) { b.PostRecv(0, Any, 0, make([]byte, 4)) },
		"a message that waits": func(tm *team, a, b *MatchContext) {
			a.TrySend(1, 7, 0, []byte("one "))
			for tm.engines[1].m.Link(0).Progress() == transport.Moved {
			}
		},
		"the context's end": func(_ *team, _, b *MatchContext) { b.Revoke(errRevoked) },
		"the engine's end": func(tm *team, _, _ *MatchContext) {
			tm.engines[1].mu.Lock()
			tm.engines[1].ended = errEnded
			tm.engines[1].unlock()
		},
		"the peer's end": func(tm *team, _, _ *MatchContext) {
			tm.engines[1].mu.Lock()
			tm.engines[1].peers[0].gone = errEnded
			tm.engines[1].unlock()
		},
		"another receive on the fast path": func(tm *team, _, _ *MatchContext) { tm.engines[1].peers[0].fast.busy.Store(true) },
	} {
		t.Run(name, func(t *testing.T) {
			tm, a, b := newInlineTeam(t, Config{})
			before(tm, a, b)
			a.TrySend(1, 7, 0, []byte("next"))
			if n, ok := b.TryRecv(0, 7, 0, make([]byte, 4)); ok {
				t.Errorf("got a message of %d bytes past it", n)
			}
		})
	}
}

// A message may arrive during a fast-path receive that it does not fit. The message must take the
// ordinary path, and later messages must not overtake it.
func TestFastPathPreservesMessageOrder(t *testing.T) {
	small := frameHeader{kind: kindEager, context: 5, tag: 7, size: 2, fingerprint: 1}
	for name, first := range map[string]frameHeader{
		"an offer":                   {kind: kindOffer, context: 5, tag: 7, size: 1 << 20, fingerprint: 1, id: 9},
		"one that does not fit":      {kind: kindEager, context: 5, tag: 7, size: 5, fingerprint: 1},
		"one of another fingerprint": {kind: kindEager, context: 5, tag: 7, size: 1, fingerprint: 2},
		"one that is in already":     {kind: kindEager, context: 5, tag: 7, size: 1, fingerprint: 1}, // not by Copy
	} {
		t.Run(name, func(t *testing.T) {
			tm, _, b := newInlineTeam(t, Config{})
			e := tm.engines[1]
			p := e.peers[0]
			if !p.fast.start(p, b, 7, 1, make([]byte, 4)) {
				t.Fatal("the fast path is not free")
			}
			if name == "one that is in already" || first.kind == kindOffer {
				e.startArrival(0, first)()
			} else {
				e.arriveInline(0, first)
			}
			if got := p.fast.state.Load(); got != fastRecvFallback {
				t.Errorf("the receive is in state %d, and must be posted", got)
			}
			e.arriveInline(0, small)
			if m := b.table.find(key{source: 0, tag: 7}); m == nil || m.env.size != int(first.size) {
				t.Errorf("the first message in the table is %+v", m)
			}
		})
	}
}

// A receive whose message was withdrawn must have precedence over all receives that were posted
// later.
func TestRepostedRecvHasPrecedence(t *testing.T) {
	tm, _, b := newInlineTeam(t, Config{})
	e := tm.engines[1]
	p := e.peers[0]
	req := b.PostRecv(0, 7, 0, make([]byte, 4))
	e.startArrival(0, frameHeader{kind: kindOffer, context: 5, tag: 7, size: 4, id: 9})()
	if !p.fast.start(p, b, 7, 0, make([]byte, 4)) {
		t.Fatal("the fast path is not free")
	}
	e.startArrival(0, frameHeader{kind: kindWithdraw, id: 9})()
	e.arriveInline(0, frameHeader{kind: kindEager, context: 5, tag: 7, size: 2})
	if !req.Met() || req.Bytes() != 2 || p.fast.state.Load() != fastRecvFallback {
		t.Errorf("the receive posted first is done: %v; the later one is in state %d", req.Met(), p.fast.state.Load())
	}
}

// arriveInline delivers a small frame from a rank in one call.
func (e *Engine) arriveInline(from int, h frameHeader) {
	var room [transport.MaxHead]byte
	f := transport.Header{Head: room[:h.encode(&room)], Size: int(h.size)}
	e.peers[from].Copy(f, make([]byte, h.size))
}

func TestTrySendYieldsToAllThatHasPrecedence(t *testing.T) {
	for name, before := range map[string]func(p *peer, s *MatchContext){
		"a send that waits": func(p *peer, s *MatchContext) {
			p.credit = 0
			s.PostSend(1, 7, 0, []byte("one"), Auto)
			p.credit = minCredit
		},
		"no credit":          func(p *peer, _ *MatchContext) { p.credit = envelopeCost + 3 },
		"a frame on its way": func(p *peer, _ *MatchContext) { p.flushing = true },
		"the context's end":  func(_ *peer, s *MatchContext) { s.err = errRevoked },
		"the engine's end":   func(p *peer, _ *MatchContext) { p.e.ended = errEnded },
		"the peer's end":     func(p *peer, _ *MatchContext) { p.gone = errEnded },
		"a broken Conn":      func(p *peer, _ *MatchContext) { p.connErr = errEnded },
		"checksums":          func(p *peer, _ *MatchContext) { p.e.cfg.Checksum = true },
		"the protocol":       func(p *peer, _ *MatchContext) { p.e.cfg.Protocol = Rendezvous },
		"the threshold":      func(p *peer, _ *MatchContext) { p.e.cfg.Threshold = 3 },
	} {
		t.Run(name, func(t *testing.T) {
			tm, a, _ := newInlineTeam(t, Config{})
			before(tm.engines[0].peers[1], a)
			if a.TrySend(1, 7, 0, []byte("next")) {
				t.Error("the message went past it")
			}
		})
	}
}

func TestRefusedTrySendCostsNoCredit(t *testing.T) {
	tm, a, b := newInlineTeam(t, Config{})
	p := tm.engines[0].peers[1]
	// This is the least credit that the header of a TrySend returns to the peer. The refused
	// TrySend must restore it, too.
	p.unreturned = int64(tm.engines[0].cfg.Credit) / inlineCreditPart
	credit, unreturned := p.credit, p.unreturned
	p.link.Conn().(*inlineConn).refuse = true
	if a.TrySend(1, 7, 0, []byte("lost")) {
		t.Fatal("the Conn has refused")
	}
	if p.credit != credit || p.unreturned != unreturned || p.flushing {
		t.Errorf("credit %d, owed %d, flushing %v; want %d, %d and false", p.credit, p.unreturned, p.flushing, credit, unreturned)
	}
	if err := a.Send(t.Context(), nil, 1, 7, 0, []byte("sent"), Auto); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4)
	if _, err := b.Recv(t.Context(), nil, 0, 7, 0, buf); err != nil || string(buf) != "sent" {
		t.Errorf("got %q, %v", buf, err)
	}
}

// A TrySend reserves credit. Meanwhile another send may find too little credit. If the TrySend is
// then refused, the other send must go out without new credit from the peer.
func TestRefusedTrySendReleasesWaitingSends(t *testing.T) {
	tm, a, b := newInlineTeam(t, Config{})
	p := tm.engines[0].peers[1]
	c := p.link.Conn().(*inlineConn)
	tm.engines[0].mu.Lock()
	p.credit, c.refuse = envelopeCost+4, true
	tm.engines[0].mu.Unlock()
	var other *Request
	c.sends.set(func() { other = a.PostSend(1, 7, 0, []byte("two "), Auto) })
	if a.TrySend(1, 8, 0, []byte("one ")) {
		t.Fatal("the Conn has refused")
	}
	got := b.PostRecv(0, 7, 0, make([]byte, 4))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := tm.engines[0].Wait(ctx, other, nil); err != nil {
		t.Error(err)
	}
	if err := tm.engines[1].Wait(ctx, got, nil); err != nil || string(got.buf) != "two " {
		t.Errorf("got %q, %v", got.buf, err)
	}
	other.Free()
	got.Free()
}

// The end of the context or of the peer must also end a fast-path receive: TryRecv returns false,
// and the Recv that follows fails with the error.
func TestTryRecvEndsWithItsContextOrPeer(t *testing.T) {
	for name, tc := range map[string]struct {
		end  func(tm *team, b *MatchContext)
		want error
	}{
		"the context": {func(_ *team, b *MatchContext) { b.Revoke(errRevoked) }, errRevoked},
		"the peer":    {func(tm *team, _ *MatchContext) { go tm.engines[1].FailPeer(0, errEnded) }, errEnded}, // it waits for the link's progress role
	} {
		t.Run(name, func(t *testing.T) {
			tm, _, b := newInlineTeam(t, Config{})
			tm.engines[1].m.Link(0).Conn().(*inlineConn).spins.set(func() { tc.end(tm, b) })
			if n, ok := b.TryRecv(0, 7, 0, make([]byte, 4)); ok {
				t.Fatalf("got %d bytes that nobody has sent", n)
			}
			if _, err := b.Recv(t.Context(), nil, 0, 7, 0, make([]byte, 4)); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
}

// Several goroutines send and receive at the same time and handle each other's messages, on the
// fast path too. A stream that nobody answers uses up the credit meanwhile.
func TestGoroutinesShareTheFastPath(t *testing.T) {
	const pairs, rounds = 4, 300
	_, a, b := newInlineTeam(t, Config{Credit: 2 * minCredit})
	ctx := t.Context()
	send := func(s *MatchContext, to, tag int, body []byte) error {
		if s.TrySend(to, int32(tag), 0, body) {
			return nil
		}
		return s.Send(ctx, nil, to, int32(tag), 0, body, Auto)
	}
	recv := func(s *MatchContext, from, tag, i int, buf []byte) error {
		n, ok := s.TryRecv(from, int32(tag), 0, buf)
		if !ok {
			e, err := s.Recv(ctx, nil, from, int32(tag), 0, buf)
			if err != nil {
				return err
			}
			n = e.Bytes
		}
		if want := bytes.Repeat([]byte{byte(i + tag)}, sizeOf(i)); !bytes.Equal(buf[:n], want) {
			return fmt.Errorf("message %d of tag %d: got %d bytes of %d, want %d of %d", i, tag, n, buf[0], len(want), want[0])
		}
		return nil
	}
	var work sync.WaitGroup
	run := func(tag int, do func(i int, body, buf []byte) error) {
		work.Go(func() {
			buf := make([]byte, sizeOf(rounds-1))
			for i := range rounds {
				if err := do(i, bytes.Repeat([]byte{byte(i + tag)}, sizeOf(i)), buf); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for tag := range pairs {
		run(tag, func(i int, body, buf []byte) error {
			return errors.Join(send(a, 1, tag, body), recv(a, 1, tag, i, buf))
		})
		run(tag, func(i int, body, buf []byte) error {
			return errors.Join(recv(b, 0, tag, i, buf), send(b, 0, tag, body))
		})
	}
	run(pairs, func(_ int, body, _ []byte) error { return send(a, 1, pairs, body) })
	run(pairs, func(i int, _, buf []byte) error { return recv(b, 0, pairs, i, buf) })
	work.Wait()
}

// sizeOf returns the size of message i in bytes. The sizes grow from 1 to more than maxInline.
func sizeOf(i int) int { return 1 + 30*i }

// The messages together take several times the credit. They must be received on both paths, and
// arrive in the order sent.
func TestFastPathReturnsCredit(t *testing.T) {
	tm, a, b := newInlineTeam(t, Config{Credit: 2 * minCredit})
	now, soon := 0, 0
	body, buf := make([]byte, 4000), make([]byte, 4000)
	for i := range 1000 {
		body[0] = byte(i)
		if a.TrySend(1, 7, 0, body) {
			now++
		} else if err := a.Send(t.Context(), nil, 1, 7, 0, body, Auto); err != nil {
			t.Fatal(err)
		}
		clear(buf)
		if _, ok := b.TryRecv(0, 7, 0, buf); ok {
			soon++
		} else if _, err := b.Recv(t.Context(), nil, 0, 7, 0, buf); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(buf, body) {
			t.Fatalf("message %d: got that of %d", i, buf[0])
		}
		tm.engines[0].m.Link(1).Progress() // the credit
	}
	if now < 100 || soon < 100 { // nearly all messages, unless another goroutine handles them first
		t.Errorf("%d messages of 1000 were sent by the fast path, and %d received", now, soon)
	}
}

func TestTryRecvFallsBackOnInvalidMessages(t *testing.T) {
	_, a, b := newInlineTeam(t, Config{})
	for _, tc := range []struct {
		fingerprint uint64
		size        int
		want        error
	}{{1, 8, fault.Misuse}, {2, 4, fault.Mismatch}} {
		if !a.TrySend(1, 7, tc.fingerprint, make([]byte, tc.size)) {
			t.Fatal("the message does not go at once")
		}
		if n, ok := b.TryRecv(0, 7, 1, make([]byte, 4)); ok {
			t.Errorf("got %d bytes of a message that must not be had", n)
		}
		if _, err := b.Recv(t.Context(), nil, 0, 7, 1, make([]byte, 4)); !errors.Is(err, tc.want) {
			t.Errorf("got %v, want %v", err, tc.want)
		}
	}
}

// A header that equals the previous header is not decoded again. A header that differs in any bit
// must be decoded and refused.
func TestHeaderCacheDetectsEveryChange(t *testing.T) {
	tm, _, _ := newInlineTeam(t, Config{})
	p := tm.engines[1].peers[0]
	h := frameHeader{kind: kindEager, context: 5, tag: 7, size: 4, fingerprint: 1}
	var room [transport.MaxHead]byte
	text := room[:h.encode(&room)]
	if !p.decodeHeader(transport.Header{Head: text, Size: 4}) {
		t.Fatal("a valid header is refused")
	}
	for bit := range 8 * len(text) {
		bad := bytes.Clone(text)
		bad[bit/8] ^= 1 << (bit % 8)
		if p.decodeHeader(transport.Header{Head: bad, Size: 4}) {
			t.Errorf("a header with bit %d flipped is accepted as the last one", bit)
		}
		p.decodeHeader(transport.Header{Head: text, Size: 4})
	}
	if p.decodeHeader(transport.Header{Head: text, Size: 5}) {
		t.Error("a header is accepted with a body of another size")
	}
}

// TryRecv must refuse a large buffer. A message for it may be large, and must find its receive
// posted.
func TestTryRecvRefusesLargeBuffers(t *testing.T) {
	tm, _, b := newInlineTeam(t, Config{})
	looked := false
	tm.engines[1].m.Link(0).Conn().(*inlineConn).spins.set(func() { looked = tm.engines[1].peers[0].fast.busy.Load() })
	if n, ok := b.TryRecv(0, 7, 0, make([]byte, maxInline+1)); ok || looked {
		t.Errorf("got %d bytes, %v; looked for them: %v", n, ok, looked)
	}
}
