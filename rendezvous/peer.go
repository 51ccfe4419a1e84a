package rendezvous

import (
	"hash/crc32"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/transport"
)

// A peer is the exchange with one other rank: what may still be sent to it, what
// is on its way, both ways, and the frames that wait for their turn. It is the
// Sink of that rank's Link. The engine's lock guards it.
type peer struct {
	e    *Engine
	rank int
	link *mesh.Link

	out      transport.Queue // frames in the order they were decided
	gathers  []gather        // those of out whose bodies lie in pieces, in the same order
	flushing bool            // one goroutine is sending from out
	listed   bool            // in e.dirty
	unsent   int             // frames that the Conn has not done yet

	credit int64 // what may be sent before the peer gives some back
	owed   int64 // what we have to give back
	held   int64 // what the peer has used of its credit, and we keep
	wanted int   // receives in tables that name this peer

	extra     int // envelopes that may be sent without credit
	extraOpen int // envelopes granted that have not come yet
	extras    int // those that have come, and no receive has met
	pending   opList
	sends     opList // offered or flowing

	offers      map[uint32]*Op
	receives    map[uint32]*Op
	nextOffer   uint32
	nextReceive uint32
	offered     map[uint32]*message // offers of the peer's that no receive has met

	in    inbound
	last  encoded
	catch catch

	shelf  shelf  // what the peer writes to
	places places // what we write to

	namesOut map[string]uint32
	namesIn  map[uint32]string

	broken error // the Conn broke; a verdict follows
	gone   error // the verdict, or the goodbye: what calls that need it get
	said   bool  // our bye is out
	took   bool  // and was answered
}

// A gather is a frame with its body.
type gather struct {
	f     *transport.Frame
	parts [][]byte
}

// inbound is the frame whose body is arriving.
type inbound struct {
	active bool
	h      head
	text   [transport.MaxHead]byte // h as it came, in len bytes
	len    int                     // 0: h is none
	op     *Op
	msg    *message
	name   []byte
	into   []byte
}

// clear makes room for the next frame. Its head is compared with this one's.
func (in *inbound) clear() {
	in.active, in.op, in.msg, in.name, in.into = false, nil, nil, nil, nil
}

// after counts on and gives the new number, which is never 0: that stands for none;
// nor transport.Unheard.
func after(n *uint32) uint32 {
	if *n++; *n == 0 || *n == transport.NoNotify {
		*n = 1
	}
	return *n
}

func newPeer(e *Engine, rank int) *peer {
	return &peer{
		e: e, rank: rank,
		credit:   minCredit,
		owed:     int64(e.cfg.Credit - minCredit),
		offers:   make(map[uint32]*Op),
		receives: make(map[uint32]*Op),
		offered:  make(map[uint32]*message),
		namesOut: make(map[string]uint32),
		namesIn:  make(map[uint32]string),
	}
}

// A ctlFrame is a frame of the exchange's own. It goes back to a free list.
type ctlFrame struct {
	transport.Frame
	room [transport.MaxHead]byte
	next *ctlFrame
	peer *peer
}

func (e *Engine) takeCtl(p *peer) *ctlFrame {
	c := e.freeCtl
	if c == nil {
		c = newCtl(e)
	} else {
		e.freeCtl = c.next
	}
	c.peer = p
	return c
}

// newCtl is apart from takeCtl for newOp's reason.
func newCtl(e *Engine) *ctlFrame {
	c := &ctlFrame{}
	c.Done = func(error) {
		e.mu.Lock()
		c.peer.unsent--
		c.peer, c.Body = nil, nil
		c.next, e.freeCtl = e.freeCtl, c
		e.release()
	}
	return c
}

// say queues a frame without a body.
func (p *peer) say(h head) { p.sayBody(h, nil) }

// sayBody queues a frame with a small body.
func (p *peer) sayBody(h head, body []byte) {
	c := p.e.takeCtl(p)
	h.credit = p.giveBack()
	if p.e.cfg.Checksum && body != nil {
		h.flags |= flagSum
		h.sum = crc32.Checksum(body, castagnoli)
	}
	c.Head = c.room[:h.encode(&c.room)]
	c.Body = body
	p.push(&c.Frame)
}

// push queues a frame for flush; e.mu is held.
func (p *peer) push(f *transport.Frame) {
	p.out.Push(f)
	p.unsent++
	if !p.listed && !p.flushing {
		p.listed = true
		p.e.dirty = append(p.e.dirty, p)
	}
}

// flush sends what is queued. It is entered and left with e.mu held, and lets go
// of it around each Send. Another goroutine that is at it already goes on with
// ours: that is what keeps frames in the order in which they were decided.
func (p *peer) flush() {
	p.listed = false
	if p.flushing {
		return
	}
	p.flushing = true
	for f := p.out.Pop(); f != nil; f = p.out.Pop() {
		parts := p.partsOf(f)
		p.e.mu.Unlock()
		if parts != nil {
			p.link.SendParts(f, parts)
		} else {
			p.link.Send(f)
		}
		p.e.mu.Lock()
	}
	p.flushing = false
}

// partsOf takes out the pieces of a frame that is taken from out; nil: it has none.
func (p *peer) partsOf(f *transport.Frame) [][]byte {
	if len(p.gathers) == 0 || p.gathers[0].f != f {
		return nil
	}
	parts := p.gathers[0].parts
	last := copy(p.gathers, p.gathers[1:])
	p.gathers[last] = gather{}
	p.gathers = p.gathers[:last]
	return parts
}

// giveBack is the credit that the next head takes along.
func (p *peer) giveBack() uint32 {
	n := min(p.owed, 1<<31)
	p.owed -= n
	return uint32(n)
}

// owe remembers credit to give back, and sends it by itself when it is much.
func (p *peer) owe(n int64) {
	p.held -= n
	p.owed += n
	if p.owed >= int64(p.e.cfg.Credit/4) && p.gone == nil && p.broken == nil {
		p.say(head{kind: kindCredit})
	}
}

// hold counts what a message of the peer's takes of its credit. A peer that
// takes more than it was given is not to be trusted.
func (p *peer) hold(n int64) bool {
	p.held += n
	if p.held > int64(p.e.cfg.Credit) {
		p.distrust("sent %d bytes beyond its credit of %d", p.held-int64(p.e.cfg.Credit), p.e.cfg.Credit)
		return false
	}
	return true
}

// Envelopes beyond the credit are granted extraStep at a time, and at most
// extraMost of them wait in the table.
const (
	extraStep = 64
	extraMost = 1 << 16
)

// relieve grants envelopes to a peer that has used up its credit while a receive
// waits here that one of its next messages may be for: messages that nobody
// receives yet must not stand in the way of those, nor of collectives. The bytes
// stay in the peer's spill buffer, which bounds how many there can be. e.mu is held.
func (p *peer) relieve() {
	if p.wanted == 0 && p.e.wantedAny == 0 || p.gone != nil || p.broken != nil {
		return
	}
	if int64(p.e.cfg.Credit)-p.held-p.owed >= envelopeCost || p.extraOpen > 0 {
		return
	}
	switch {
	case p.owed >= envelopeCost:
		p.say(head{kind: kindCredit})
	case p.extras < extraMost:
		p.extraOpen += extraStep
		p.say(head{kind: kindCredit, id: extraStep})
	}
}

// granted takes credit that the peer gave back, and lets waiting sends go.
func (p *peer) granted(n, extra uint32) {
	p.credit += int64(n)
	p.extra += int(min(extra, extraMost))
	for op := p.pending.first; op != nil && p.affords() && !p.overtakes(op); op = p.pending.first {
		p.pending.remove(op)
		p.launch(op)
	}
}

// Buffer implements transport.Sink. It runs under the link's role.
func (p *peer) Buffer(f transport.Header) []byte {
	if !p.read(f) {
		return nil
	}
	return p.place(f)
}

// read decodes a head into p.in, which the link's role guards. A head that says
// what the one before has said, as in a steady exchange, is decoded already.
func (p *peer) read(f transport.Header) bool {
	in := &p.in
	if in.len > 0 && string(f.Head) == string(in.text[:in.len]) && in.h.check(f.Size) == nil {
		return true
	}
	in.len = 0
	if err := in.h.decode(f.Head, f.Size); err != nil {
		p.distrust("sent %v", err)
		return false
	}
	in.len = copy(in.text[:], f.Head)
	return true
}

// place is Place of a frame whose head was read.
func (p *peer) place(f transport.Header) []byte {
	in := &p.in
	h := &in.h
	p.e.mu.Lock()
	switch {
	case h.kind == kindCredit:
		p.granted(h.credit, h.id)
	case h.credit > 0:
		p.granted(h.credit, 0)
	}
	in.active = true
	switch h.kind {
	case kindEager:
		p.placeEager(h)
	case kindData:
		p.placeData(h)
	case kindName, kindRegion, kindFreed:
		in.name = make([]byte, f.Size)
		in.into = in.name
	}
	into := in.into
	p.e.release()
	return into
}

// Arrived implements transport.Sink.
func (p *peer) Arrived(f transport.Header, n int) {
	if n != f.Size {
		return
	}
	p.e.mu.Lock()
	in := &p.in
	if !in.active { // it went straight into memory that we exposed
		if f.ID != 0 && f.ID != transport.NoNotify {
			p.dataArrived(p.receives[f.ID], f.Size)
		}
		p.e.release()
		return
	}
	if in.h.flags&flagSum != 0 && in.into != nil {
		if got := crc32.Checksum(in.into[:f.Size], castagnoli); got != in.h.sum {
			p.letGo()
			p.e.release()
			p.distrust("sent a body with checksum %08x instead of %08x", got, in.h.sum)
			return
		}
	}
	p.handle(in)
	in.clear()
	p.e.release()
}

// handle acts on a frame that is in as a whole; e.mu is held.
func (p *peer) handle(in *inbound) {
	h := &in.h
	switch h.kind {
	case kindEager:
		p.eagerArrived(in)
	case kindData:
		if in.op != nil {
			in.op.touching = false
			p.dataArrived(in.op, int(h.size))
		}
	case kindOffer:
		p.offerArrived(h)
	case kindRequest:
		p.requested(h)
	case kindWithdraw:
		p.withdrawn(h.id)
	case kindDrop:
		if op := p.offers[h.id]; op != nil {
			delete(p.offers, h.id)
			p.e.finish(op, nil)
		}
	case kindAbandon:
		p.abandoned(h.id)
	case kindNudge:
		p.e.nudged()
	case kindBye:
		p.say(head{kind: kindTook})
	case kindRegion:
		p.laidOut(h, in.name)
	case kindLaid:
		p.laid(h.id)
	case kindPlaced:
		p.placedArrived(h)
	case kindFreed:
		p.berthsFreed(h.id, in.name)
	case kindTook:
		p.took = true
		p.e.wakeClosers()
	case kindName:
		if len(p.namesIn) >= maxNames {
			p.distrust("sent more than %d names", maxNames)
			return
		}
		p.namesIn[h.id] = string(in.name)
	}
}

// dropInbound lets go of the frame that was arriving when the Conn broke, and of
// receives that were leaving and waited for their sender.
func (p *peer) dropInbound() {
	p.letGo()
	for _, op := range p.receives {
		if op.leaving != nil {
			p.e.retire(op, op.leaving)
		}
	}
}

// letGo ends what a half-arrived body was being written into: a receive stays
// matched until the verdict, or ends now if it was leaving.
func (p *peer) letGo() {
	in := &p.in
	defer in.clear()
	if in.op != nil {
		in.op.touching = false
		if in.op.leaving != nil {
			p.e.retire(in.op, in.op.leaving)
		}
	}
	if in.msg != nil {
		p.e.abandonMessage(in.msg)
	}
}

// distrust ends the link: what came on it cannot have been meant so.
func (p *peer) distrust(format string, args ...any) {
	p.link.Doom(fault.New(fault.LinkLost, "receive", p.e.cfg.Rank, "rank %d "+format, append([]any{p.rank}, args...)...))
}
