package rendezvous

import (
	"context"
	"errors"
	"fmt"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/transport"
)

// exposeFrom is the size from which a buffer is shown to its sender, where the
// Conn can do that, and bodies carry no checksum: what is written into exposed
// memory comes without its head, and so without its checksum.
const exposeFrom = 16 << 10

// A message is what has come, or was offered, and met no receive yet.
type message struct {
	space *Space
	key   key
	env   envelope
	peer  *peer
	cost  int64

	data     []byte // pushed bytes
	complete bool   // all of data is in
	claim    *Op    // the receive that met it while data was arriving
	gone     bool   // its space was closed while data was arriving
	taken    bool   // an offer of an ordered space that its sender took back
	offer    uint32 // when it is an offer
	lies     lent   // where data is, when it lies in a region
	local    *Op    // when it is a send of this rank's to itself

	prev, next     *message // in its slot
	earlier, later *message // in the space's arrivals
	listed         bool
}

func (e *Engine) takeMessage(s *Space, k key) *message {
	m := e.freeMsg
	if m == nil {
		m = &message{}
	} else {
		e.freeMsg = m.next
		*m = message{}
	}
	m.space, m.key = s, k
	return m
}

func (e *Engine) freeMessage(m *message) {
	if l := m.lies.from; l != nil {
		l.giveBack(m.lies.berth)
	} else {
		e.storage.put(m.data)
	}
	*m = message{next: e.freeMsg}
	e.freeMsg = m
}

// storage is memory for pushed bytes that met no receive, between two uses.
type storage struct {
	free [][]byte
	kept int // bytes in free
}

const (
	keepData = 4 << 20 // the most bytes of free storage
	tryData  = 4       // pieces that are looked at, for one about as large, before a new one is made
)

// get is n bytes of storage, with any content.
func (st *storage) get(n int) []byte {
	last := len(st.free) - 1
	for i := last; i >= max(0, last-tryData); i-- {
		if b := st.free[i]; cap(b) >= n && cap(b) <= 2*n+512 {
			st.free[i], st.free[last] = st.free[last], nil
			st.free = st.free[:last]
			st.kept -= cap(b)
			return b[:n]
		}
	}
	return make([]byte, n)
}

func (st *storage) put(b []byte) {
	if cap(b) > 0 && st.kept+cap(b) <= keepData {
		st.free = append(st.free, b)
		st.kept += cap(b)
	}
}

// discard ends a message whose bytes are not needed any more, and owes its cost.
func (e *Engine) discard(m *message) {
	if m.peer != nil {
		m.peer.pay(m.cost)
	}
	e.freeMessage(m)
}

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

// deliver gives a message that is or will be complete to the receive that waits
// for it, or lets it wait.
func (e *Engine) deliver(m *message) {
	s := m.space
	if op := s.table.arrive(m.key); op != nil {
		e.meet(op, m)
		return
	}
	s.table.add(m)
	s.noticed(m)
	if m.peer != nil {
		m.peer.catch.waits(m)
		m.peer.relieve()
	}
}

// placeEager finds the place of a pushed message's bytes: the buffer of the
// receive that waits for it, or storage in the table.
func (p *peer) placeEager(h *head) {
	e := p.e
	s := e.space(h.context)
	k, ok := p.keyOf(h)
	if s == nil || s.err != nil || !ok {
		p.hold(envelopeCost + int64(h.size))
		p.owe(envelopeCost + int64(h.size))
		return
	}
	cost := envelopeCost + int64(h.size)
	if !p.hold(cost) {
		return
	}
	if op := s.table.arrive(k); op != nil {
		e.match(op, p, p.envelopeOf(h))
		p.in.op, op.touching = op, true // also when the bytes are dropped: p.in holds the op until they are in
		if e.admit(op) {
			p.in.into = op.buf
		}
		return
	}
	m := e.takeMessage(s, k)
	m.peer, m.env, m.cost = p, p.envelopeOf(h), cost
	m.data = e.storage.get(int(h.size))
	p.in.msg, p.in.into = m, m.data
	s.table.add(m)
	s.noticed(m)
	p.catch.waits(m)
	p.relieve()
}

// eagerArrived ends what placeEager began.
func (p *peer) eagerArrived(in *inbound) {
	e := p.e
	switch {
	case in.op != nil:
		in.op.touching = false
		p.owe(envelopeCost + int64(in.h.size))
		e.finish(in.op, in.op.leaving)
	case in.msg != nil:
		m := in.msg
		m.complete = true
		switch {
		case m.gone:
			e.discard(m)
		case m.claim != nil:
			op := m.claim
			m.claim, op.claimed = nil, nil
			if op.leaving != nil {
				e.discard(m)
				e.finish(op, op.leaving)
				return
			}
			e.copyLater(op, m)
		}
	}
}

// abandonMessage drops a message whose bytes will never all be in.
func (e *Engine) abandonMessage(m *message) {
	if m.listed {
		m.space.table.remove(m)
	}
	m.complete, m.gone = true, true // a claim ends with the verdict
}

// offerArrived meets an offer with its receive, or lets it wait.
func (p *peer) offerArrived(h *head) {
	e := p.e
	s := e.space(h.context)
	k, ok := p.keyOf(h)
	cost, fair := p.charge(h)
	if !fair {
		return
	}
	if s == nil || s.err != nil || !ok {
		p.pay(cost)
		p.say(head{kind: kindDrop, id: h.id})
		return
	}
	if p.offered[h.id] != nil {
		p.distrust("sent a second offer %d", h.id)
		return
	}
	m := e.takeMessage(s, k)
	m.peer, m.env, m.cost = p, p.envelopeOf(h), cost
	m.offer, m.complete = h.id, true
	p.offered[h.id] = m
	p.wantsBerth(h)
	e.deliver(m)
}

// charge counts what an offer takes: credit, or one of the envelopes granted
// beyond it, which cost nothing.
func (p *peer) charge(h *head) (cost int64, fair bool) {
	if h.flags&flagExtra == 0 {
		return envelopeCost, p.hold(envelopeCost)
	}
	if p.extraOpen == 0 {
		p.distrust("sent an offer that neither its credit nor a grant allows")
		return 0, false
	}
	p.extraOpen--
	p.extras++
	return 0, true
}

// pay undoes charge once the message is used up.
func (p *peer) pay(cost int64) {
	if cost == 0 {
		p.extras--
		return
	}
	p.owe(cost)
}

// withdrawn takes an offer out of the table. A receive that has met it already
// goes back to where it stood: the message was never sent.
func (p *peer) withdrawn(offer uint32) {
	e := p.e
	if m := p.offered[offer]; m != nil {
		delete(p.offered, offer)
		if m.space.ordered {
			m.taken, m.offer = true, 0 // it stands before what came after it
			return
		}
		m.space.table.remove(m)
		e.discard(m)
		return
	}
	for _, op := range p.receives {
		if op.offer != offer {
			continue
		}
		switch {
		case op.unexpose != nil:
			op.withdrew = true
			e.hide(op, op.leaving)
		case op.touching: // being exposed just now
			op.withdrew = true
		case op.leaving != nil:
			e.finish(op, op.leaving)
		default:
			e.repost(op)
		}
		return
	}
}

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

// abandoned ends a receive whose sender has left after some of its bytes.
func (p *peer) abandoned(id uint32) {
	op := p.receives[id]
	if op == nil {
		return
	}
	err := op.leaving
	if err == nil {
		err = fault.New(fault.Revoked, "recv", p.e.cfg.Rank, "rank %d left the message after %d of %d bytes", p.rank, op.arrived, len(op.buf))
	}
	if op.unexpose != nil {
		p.e.hide(op, err)
		return
	}
	p.e.retire(op, err)
}

// placeData finds the place of a data frame in its receive's buffer.
func (p *peer) placeData(h *head) {
	op := p.receives[h.id]
	if op == nil {
		return // the receive has left; its bytes go into a drain
	}
	if h.offset+h.size > uint64(len(op.buf)) {
		p.distrust("sent data at %d+%d for a message of %d bytes", h.offset, h.size, len(op.buf))
		return
	}
	if op.leaving != nil {
		return
	}
	op.touching = true
	p.in.op = op
	p.in.into = op.buf[h.offset : h.offset+h.size]
}

// dataArrived counts n more bytes of op's message, and ends op with the last.
func (p *peer) dataArrived(op *Op, n int) {
	if op == nil || op.phase != phaseMatched {
		return
	}
	op.arrived += n
	e := p.e
	switch {
	case op.leaving != nil && op.unexpose == nil:
		e.retire(op, op.leaving)
	case op.arrived > len(op.buf):
		p.distrust("sent %d bytes of a message of %d", op.arrived, len(op.buf))
	case op.arrived == len(op.buf):
		p.noteReceived(op)
		if op.unexpose == nil {
			e.finish(op, op.leaving)
			return
		}
		op.whollyIn = op.leaving == nil
		e.hide(op, op.leaving)
	}
}

// keyOf is the key of a message from p.
func (p *peer) keyOf(h *head) (key, bool) {
	k := key{source: int32(p.rank), tag: h.tag}
	if h.flags&flagNamed == 0 {
		return k, h.tag >= 0
	}
	name, ok := p.namesIn[h.name]
	k.tag, k.step, k.name = namedTag, h.step, name
	return k, ok && !p.e.steps.over(h.context, h.step)
}

func (p *peer) envelopeOf(h *head) envelope {
	return envelope{
		source: p.rank, tag: h.tag, size: int(h.size), print: h.print,
		dead: h.flags&flagDead != 0, dtype: h.dtype, ndim: h.ndim, dims: h.dims, name: h.name,
	}
}
