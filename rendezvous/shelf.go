package rendezvous

import (
	"encoding/binary"
	"errors"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// A shelf is the memory of this rank's that a peer writes recurring tensors to. The
// engine's lock guards it, and its regions.
type shelf struct {
	census  census
	now     *region // where the peer writes; nil before it has said so
	next    *region // told to the peer, which has not answered
	making  bool    // one is being made, by a goroutine of its own
	refused bool    // the Conn cannot expose such memory: there is no region
	warned  bool    // and the log has it
	most    uint64  // bytes of a region, once the Conn did not expose a larger one; 0: Config.Region
	count   uint32  // of regions
}

// A region is one piece of memory with a berth per tensor. The collector keeps the
// memory for as long as somebody has a part of it, also when the region is replaced.
type region struct {
	peer   *peer
	number uint32
	mem    []byte
	berths []berth
	by     map[tensorID]uint32
	untold []uint32 // berths given back, of which the peer does not know
	hide   func()
}

// A lent is a berth that a program has: the zero one is none.
type lent struct {
	from  *region
	berth uint32
	use   uint32
}

// Release gives Data back to the region that it lies in (Config.Region): its sender
// may write there again from then on. Elsewhere, and the second time, it does nothing.
// Without it Data stays the program's, and the tensors of that name are asked for, at
// later steps, as if there were no region.
func (t Tensor) Release() {
	l := t.lent.from
	if l == nil {
		return
	}
	e := l.peer.e
	e.mu.Lock()
	defer e.unlock()
	if s := &l.berths[t.lent.berth]; s.used && s.use == t.lent.use {
		l.giveBack(t.lent.berth)
	}
}

// giveBack has the peer hear that it may write to a berth again: once that is so for a
// quarter of them, or when it offers what has a free berth. e.mu is held.
func (l *region) giveBack(i uint32) {
	l.berths[i].used = false
	l.untold = append(l.untold, i)
	if len(l.untold) >= max(1, len(l.berths)/4) {
		l.tell()
	}
}

// tell says which berths are free again, if the peer still uses the region.
func (l *region) tell() {
	p := l.peer
	if len(l.untold) == 0 || p.shelf.now != l || p.gone != nil || p.connErr != nil {
		return
	}
	body := make([]byte, 0, 4*len(l.untold))
	for _, i := range l.untold {
		body = binary.LittleEndian.AppendUint32(body, i)
	}
	l.untold = l.untold[:0]
	p.sendControlBody(frameHeader{kind: kindFreed, id: l.number, size: uint64(len(body))}, body)
}

// watches reports whether regions are for this peer.
func (p *peer) watches() bool {
	return p.e.cfg.Region > 0 && !p.e.cfg.Checksum && !p.shelf.refused
}

// wantsBerth hears of an offer: for want of a berth, perhaps, that is free again.
func (p *peer) wantsBerth(h *frameHeader) {
	now := p.shelf.now
	if now == nil || h.flags&flagNamed == 0 {
		return
	}
	if i, ok := now.by[tensorID{h.context, h.name}]; ok && !now.berths[i].used {
		now.tell()
	}
}

// noteReceived counts a tensor that was offered and has come as a whole. An offer alone
// does not count: memory is laid out for what was sent, not for what was claimed.
func (p *peer) noteReceived(req *Request) {
	if req.tensor != nil && len(req.buf) >= exposeFrom && p.watches() {
		p.note(tensorID{req.mc.id, req.match.name}, req.key.step, uint64(len(req.buf)))
	}
}

// note counts a tensor, and plans when it is time. e.mu is held.
func (p *peer) note(id tensorID, step, size uint64) {
	sh := &p.shelf
	room := uint64(0)
	for _, l := range []*region{sh.now, sh.next} {
		if l != nil {
			if i, ok := l.by[id]; ok {
				room = max(room, l.berths[i].size)
			}
		}
	}
	sh.census.note(id, step, size, room)
	if !sh.making && sh.next == nil && sh.census.due() {
		p.plan()
	}
}

// plan has a region made if another one would be better.
func (p *peer) plan() {
	sh := &p.shelf
	var by map[tensorID]uint32
	var berths []berth
	if sh.now != nil {
		by, berths = sh.now.by, sh.now.berths
	}
	most := sh.most
	if most == 0 {
		most = uint64(p.e.cfg.Region)
	}
	next, bytes := sh.census.plan(by, berths, most)
	if next == nil {
		return
	}
	if p.e.ended == nil { // which Rest relies on
		sh.making = true
		p.e.laying.Go(func() { p.lay(next, int(bytes)) })
	}
}

// lay makes the memory of a region, shows it, and tells the peer. It has a goroutine,
// because to pin it takes a device some 200 µs per MiB, in which no link shall stand.
func (p *peer) lay(berths []berth, bytes int) {
	l := &region{peer: p, mem: make([]byte, bytes), berths: berths, by: index(berths)}
	var token transport.Token
	err := errConnGone
	if x := p.exposer(); x != nil {
		token, l.hide, err = x.Expose(transport.NoNotify, l.mem)
	}
	e := p.e
	e.mu.Lock()
	defer e.unlock()
	sh := &p.shelf
	sh.making = false
	switch {
	case p.gone != nil || p.connErr != nil || e.ended != nil:
		l.retire()
	case err != nil:
		p.noRegion(bytes, err)
	default:
		sh.count++
		l.number, sh.next = sh.count, l
		body := putRegion(berths)
		p.sendControlBody(frameHeader{kind: kindRegion, flags: flagToken, id: l.number, size: uint64(len(body)), token: token}, body)
	}
}

// noRegion notes that the Conn did not expose a region of so many bytes. What it has no
// room for is tried again, much later and with half of them; the rest is final. One line
// per peer in the log says so. e.mu is held.
func (p *peer) noRegion(bytes int, err error) {
	e, sh := p.e, &p.shelf
	remedy := "raise the limit of locked memory (ulimit -l), or lower WithTensorRegion; half of the bytes are tried later"
	if errors.Is(err, errConnGone) || errors.Is(err, fault.Refused) {
		remedy = "take a transport that can show any memory (memory, verbs), or no WithTensorRegion"
		sh.refused = true
	}
	sh.most = uint64(bytes / 2)
	sh.refused = sh.refused || sh.most < exposeFrom
	sh.census.again()
	if sh.warned {
		return
	}
	sh.warned = true
	e.deferAction(deferredAction{kind: actionRun, run: func() {
		e.cfg.Log.Warn("tensors that recur are not laid out, but asked for at each step",
			"rank", e.cfg.Rank, "from", p.rank, "bytes", bytes, "because", err, "remedy", remedy)
	}})
}

// laid hears that the peer writes to the next region, and to no other any more.
func (p *peer) laid(number uint32) {
	sh := &p.shelf
	if sh.now != nil && sh.now.number == number {
		p.protocolError("said a second time that it uses region %d", number)
		return
	}
	if sh.next == nil || sh.next.number != number {
		p.protocolError("uses region %d, which it was not told of", number)
		return
	}
	old := sh.now
	sh.now, sh.next = sh.next, nil
	if old != nil {
		old.retire()
	}
}

// retire takes the memory from the peer; what has come there stays. e.mu is held.
func (l *region) retire() {
	if hide := l.hide; hide != nil {
		l.hide = nil
		l.peer.e.deferAction(deferredAction{kind: actionRun, run: hide})
	}
}

// clearShelf takes all memory from the peer, for good. e.mu is held.
func (p *peer) clearShelf() {
	sh := &p.shelf
	for _, l := range []*region{sh.now, sh.next} {
		if l != nil {
			l.retire()
		}
	}
	sh.now, sh.next, sh.refused = nil, nil, true
}

// placedArrived is a message whose bytes lie in a berth.
func (p *peer) placedArrived(h *frameHeader) {
	e, l := p.e, p.shelf.now
	id := tensorID{h.context, h.name}
	if l == nil || uint64(h.id) >= uint64(len(l.berths)) || l.berths[h.id].id != id || l.berths[h.id].used || h.size > l.berths[h.id].size {
		p.protocolError("sent %d bytes in berth %d, which it may not", h.size, h.id)
		return
	}
	s := &l.berths[h.id]
	s.used = true
	s.use++
	if !p.chargeCredit(envelopeCost) {
		return
	}
	p.note(id, h.step, h.size)
	sp := e.contextFor(h.context)
	k, ok := p.keyOf(h)
	if sp == nil || sp.err != nil || !ok {
		p.returnCredit(envelopeCost)
		l.giveBack(h.id)
		return
	}
	m := e.getMessage(sp, k)
	m.peer, m.env, m.cost, m.complete = p, p.envelopeOf(h), envelopeCost, true
	m.data = l.mem[s.off : s.off+h.size : s.off+h.size]
	m.lies = lent{l, h.id, s.use}
	e.deliver(m)
}

// lend gives a receive without a buffer the memory that its message lies in. e.mu is
// held.
func (e *Engine) lend(req *Request, m *message) {
	req.buf, req.tensor.lent = m.data, m.lies
	m.data, m.lies = nil, lent{}
	e.discard(m)
	e.finish(req, nil)
}
