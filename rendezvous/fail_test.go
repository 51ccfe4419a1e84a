package rendezvous

import (
	"errors"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// arriveEager delivers an eager message from a rank, as its link would.
func arriveEager(e *Engine, from int, s *MatchContext, tag int32, body string) {
	h := frameHeader{kind: kindEager, context: s.id, tag: tag, size: uint64(len(body))}
	var room [transport.MaxHead]byte
	f := transport.Header{Head: room[:h.encode(&room)], Size: len(body)}
	copy(e.peers[from].Buffer(f), body)
	e.peers[from].Arrived(f, len(body))
}

// A rank may close as soon as its message has arrived. The message must be received even if its
// copy to the receive is not finished by then.
func TestArrivedMessageIsReceivedAfterItsSenderLeft(t *testing.T) {
	gone := fault.New(fault.Closed, "close", 1, "")
	for name, end := range map[string]func(e *Engine, s *MatchContext){
		"the sender closes":      func(e *Engine, s *MatchContext) { s.failSource(e.peers[1], gone) },
		"the context is revoked": func(_ *Engine, s *MatchContext) { s.fail(gone) },
	} {
		t.Run(name, func(t *testing.T) {
			e := New(Config{Rank: 0, Size: 2, Credit: minCredit})
			s := e.Open(7, []int{0, 1})
			arriveEager(e, 1, s, 3, "hello")
			buf := make([]byte, 5)
			e.mu.Lock()
			req := e.getRequest()
			req.mc, req.buf, req.fullBuf, req.key = s, buf, buf, key{source: 1, tag: 3}
			e.post(req) // the copy is deferred until unlock
			e.peers[1].gone = gone
			end(e, s)
			e.unlock()
			if !req.Met() || req.Err() != nil || string(buf) != "hello" {
				t.Errorf("done %v with %v and %q, want the message", req.Met(), req.Err(), buf)
			}
		})
	}
}

// The Conn may report that a frame is out only after the peer has received it and closed. The send
// must succeed all the same.
func TestHandedOverSendSucceedsWhenThePeerCloses(t *testing.T) {
	const size = 100
	for name, c := range map[string]struct {
		kind fault.Kind
		sent int
		want error
	}{
		"the peer closes":                     {fault.Closed, size, nil},
		"the peer closes before it has all":   {fault.Closed, size / 2, fault.Closed},
		"the peer is lost with all its bytes": {fault.PeerLost, size, fault.PeerLost},
	} {
		t.Run(name, func(t *testing.T) {
			e := New(Config{Rank: 0, Size: 2})
			p := e.peers[1]
			req := e.getRequest()
			req.mc, req.send, req.peer, req.buf = e.Open(7, []int{0, 1}), true, p, make([]byte, size)
			req.phase, req.sent, req.inFlight = phaseFlowing, c.sent, 1
			p.sends.addLast(req)
			p.inConn, req.frames[0].busy = 1, true
			e.FailPeer(1, fault.New(c.kind, "close", 1, ""))
			req.frames[0].Done(errors.New("the link has ended"))
			if !req.Met() || !errors.Is(req.Err(), c.want) {
				t.Errorf("done %v with %v, want %v", req.Met(), req.Err(), c.want)
			}
		})
	}
}
