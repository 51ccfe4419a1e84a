package rendezvous

import (
	"context"

	"github.com/tutti-go/tutti/mesh"
)

// Post begins to receive a message that from and tag cover (Any is a wildcard)
// into buf and returns at once. The buffer is the op's until it is done.
func (s *Space) Post(from int, tag int32, print uint64, buf []byte) *Op {
	e := s.e
	e.mu.Lock()
	op := e.take()
	op.space, op.buf, op.whole, op.print = s, buf, buf, print
	op.key = key{source: int32(from), tag: tag}
	e.post(op)
	e.release()
	return op
}

// Recv receives a message that from and tag cover into buf, and returns its
// envelope. ctx and p bound the wait; p may be nil.
func (s *Space) Recv(ctx context.Context, p mesh.Patience, from int, tag int32, print uint64, buf []byte) (Envelope, error) {
	op := s.Post(from, tag, print, buf)
	err := s.e.wait(ctx, op, p)
	env := op.envelope()
	op.Free()
	return env, err
}

// An Envelope is what a receive learns of its message.
type Envelope struct {
	Source, Tag, Bytes int
}

func (op *Op) envelope() Envelope {
	return Envelope{Source: op.match.source, Tag: int(op.match.tag), Bytes: op.match.size}
}

// post looks for op's message, or lets op wait; e.mu is held.
func (e *Engine) post(op *Op) {
	s := op.space
	if m := s.table.find(op.key); m != nil && e.ended == nil && s.err == nil {
		s.table.remove(m)
		e.meet(op, m)
		return
	}
	if err := s.receivable(op.key); err != nil {
		e.finish(op, err)
		return
	}
	s.table.post(op)
	e.want(op)
}

// want notes that op waits in a table, and sees to it that what it waits for can
// come.
func (e *Engine) want(op *Op) {
	op.phase = phasePosted
	switch r := int(op.key.source); r {
	case Any:
		e.wantedAny++
		for _, m := range op.space.members {
			e.peers[m].relieve()
		}
	default:
		e.peers[r].wanted++
		e.peers[r].relieve()
	}
}

// unwant undoes want when op leaves the table.
func (e *Engine) unwant(op *Op) {
	if op.key.source == Any {
		e.wantedAny--
		return
	}
	e.peers[op.key.source].wanted--
}

// receivable is why a message that k covers can never come.
func (s *Space) receivable(k key) error {
	e := s.e
	switch {
	case e.ended != nil:
		return e.ended
	case s.err != nil:
		return s.err
	case k.source >= 0:
		return e.peers[k.source].gone
	}
	return s.nobodyLeft()
}

// nobodyLeft is why a receive from any source fails: a member is lost, or all
// others have closed in order. e.mu is held.
func (s *Space) nobodyLeft() error {
	var closed error
	left := false
	for _, r := range s.members {
		switch p := s.e.peers[r]; {
		case p.gone != nil && !p.leftInOrder():
			return p.gone
		case p.gone != nil:
			closed = p.gone
		case r != s.e.cfg.Rank:
			left = true
		}
	}
	if left {
		return nil
	}
	return closed
}
