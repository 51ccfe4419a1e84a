package rendezvous

import (
	"errors"
	"fmt"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// exposeFrom is the size from which a buffer is shown to its sender, where the
// Conn can do that, and bodies carry no checksum: what is written into exposed
// memory comes without its head, and so without its checksum.
const exposeFrom = 16 << 10

// meet joins a receive with its message, which is in no list any more.
func (e *Engine) meet(op *Op, m *message) {
	e.match(op, e.peers[m.env.source], m.env)
	if m.lies.from != nil && op.alloc && int64(m.env.size) <= e.cfg.StepBytes {
		e.lend(op, m)
		return
	}
	fits := e.admit(op)
	switch {
	case m.local != nil:
		from := m.local
		from.local = nil
		e.freeMessage(m)
		from.phase = phaseMatched
		from.peer.sends.remove(from)
		if !fits {
			op.buf = nil
		}
		op.touching = true
		e.later(chore{do: choreLocal, op: op, from: from})
	case m.taken:
		e.discard(m)
		e.repost(op)
	case m.offer != 0:
		delete(m.peer.offered, m.offer)
		e.accept(op, m, fits)
	case !m.complete:
		m.claim, op.claimed = op, m
	case !fits:
		e.discard(m)
		e.finish(op, op.leaving)
	default:
		e.copyLater(op, m)
	}
}

// copyLater has a message that is here as a whole copied into its receive.
func (e *Engine) copyLater(op *Op, m *message) {
	op.touching, op.whollyIn = true, true
	e.later(chore{do: choreCopy, op: op, msg: m})
}

// match notes which message a receive has met.
func (e *Engine) match(op *Op, p *peer, env envelope) {
	if op.phase == phasePosted {
		e.unwant(op)
	}
	op.phase = phaseMatched
	op.space.matched.push(op)
	op.peer, op.match = p, env
	if op.tensor != nil {
		env.into(op.tensor)
	}
}

// A PrintError is the cause where a message's fingerprint is not its receive's.
type PrintError struct {
	Source, Tag  int
	Sent, Wanted uint64
}

func (e *PrintError) Error() string {
	return fmt.Sprintf("the message from rank %d with tag %d has fingerprint %x, the receive %x", e.Source, e.Tag, e.Sent, e.Wanted)
}

// admit checks a message against the receive that it met, and notes in
// op.leaving what is wrong; the message is used up all the same.
func (e *Engine) admit(op *Op) bool {
	env := &op.match
	switch {
	case op.print != 0 && env.print != 0 && op.print != env.print:
		op.leaving = &fault.Error{Kind: fault.Mismatch, Op: "recv", Rank: e.cfg.Rank, Peers: []fault.Peer{{Rank: env.source}},
			Err: &PrintError{Source: env.source, Tag: int(env.tag), Sent: env.print, Wanted: op.print}}
	case op.alloc && int64(env.size) <= e.cfg.StepBytes:
		op.buf = make([]byte, env.size)
		op.tensor.Data = op.buf
	case op.alloc:
		op.leaving = fault.New(fault.Exhausted, "recv", e.cfg.Rank,
			"tensor %q of %d bytes from rank %d is above this rank's StepBytes of %d", op.key.name, env.size, env.source, e.cfg.StepBytes)
	case env.size > len(op.buf):
		op.leaving = e.misuse("recv", "the message of %d bytes from rank %d with tag %d does not fit the receive's %d bytes; make the buffer larger or Probe first",
			env.size, env.source, env.tag, len(op.buf))
	}
	if op.leaving != nil {
		return false
	}
	op.buf = op.buf[:env.size]
	return true
}

// accept requests the bytes of an offer, or declines them.
func (e *Engine) accept(op *Op, m *message, fits bool) {
	p, offer := m.peer, m.offer
	e.discard(m)
	if !fits {
		p.say(head{kind: kindDrop, id: offer})
		e.finish(op, op.leaving)
		return
	}
	op.id, op.offer = after(&p.nextReceive), offer
	p.receives[op.id] = op
	if len(op.buf) >= exposeFrom && !e.cfg.Checksum && p.exposer() != nil {
		op.touching = true
		e.later(chore{do: choreExpose, op: op})
		return
	}
	p.say(head{kind: kindRequest, id: offer, receive: op.id, size: uint64(len(op.buf))})
	if len(op.buf) == 0 {
		p.dataArrived(op, 0)
	}
}

func (p *peer) exposer() transport.Exposer {
	x, _ := p.link.Conn().(transport.Exposer)
	return x
}

// exposeAndRequest shows op's buffer to the peer and requests the bytes into it.
// It runs without the lock, because exposing may take its time.
func (e *Engine) exposeAndRequest(op *Op) {
	p := op.peer
	h := head{kind: kindRequest, id: op.offer, receive: op.id, size: uint64(len(op.buf))}
	var token transport.Token
	var hide func()
	err := errNoExposer
	if x := p.exposer(); x != nil {
		token, hide, err = x.Expose(op.id, op.buf)
	}
	e.mu.Lock()
	defer e.release()
	op.touching = false
	if err == nil {
		h.flags, h.token = flagToken, token
		op.unexpose = hide
	}
	switch {
	case op.leaving == nil && !op.withdrew:
		p.say(h)
	case op.unexpose != nil: // it was retired, or taken back, and the sender knows nothing of it
		e.hide(op, op.leaving)
	case op.withdrew:
		e.repost(op)
	default:
		e.finish(op, op.leaving)
	}
}

// errNoExposer says that the Conn went away, and its abilities with it.
var errNoExposer = errors.New("the connection is gone")

// repost puts a receive back to where it stood before its match, which its
// sender took back, unless it has left meanwhile. In an ordered space it meets
// nothing any more.
func (e *Engine) repost(op *Op) {
	if err := firstError(op.leaving, op.canceled); err != nil {
		e.finish(op, err)
		return
	}
	e.unmatch(op)
	op.phase, op.peer, op.offer, op.id, op.withdrew, op.hiding = phaseIdle, nil, 0, 0, false, false
	op.buf = op.whole
	if op.space.ordered {
		op.key.tag = strandedTag
	}
	if err := op.space.receivable(op.key); err != nil {
		e.finish(op, err)
		return
	}
	op.space.recall()
	if m := op.space.table.repost(op); m != nil {
		e.meet(op, m)
		return
	}
	e.want(op)
}
