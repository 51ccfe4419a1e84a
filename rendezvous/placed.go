package rendezvous

import (
	"encoding/binary"

	"github.com/tutti-go/tutti/transport"
)

// places are the berths that a peer has laid out for what this rank sends to it. The
// engine's lock guards them.
type places struct {
	number  uint32
	token   transport.Token
	berths  []berth    // used: from the first write until the peer gives it back
	writers []*Request // by berth: the send that writes there and has not been told of
	by      map[tensorID]uint32
	open    int     // how many writers there are
	next    *places // told of while some were open
}

// laidOut takes a region of the peer's: at once, or when nothing is being written to
// the one before.
func (p *peer) laidOut(h *frameHeader, body []byte) {
	berths, err := parseRegion(body)
	switch {
	case err != nil || h.flags&flagToken == 0:
		p.protocolError("sent region %d that cannot be: %v", h.id, err)
		return
	case p.places.next != nil || h.id != p.places.number+1:
		p.protocolError("sent region %d after %d", h.id, p.places.number)
		return
	}
	p.places.next = &places{number: h.id, token: h.token, berths: berths, writers: make([]*Request, len(berths)), by: index(berths)}
	p.changePlaces()
}

func (p *peer) changePlaces() {
	if next := p.places.next; next != nil && p.places.open == 0 {
		p.places = *next
		p.sendControl(frameHeader{kind: kindLaid, id: next.number})
	}
}

// berthsFreed hears which berths may be written again. Those of regions before are gone.
func (p *peer) berthsFreed(number uint32, body []byte) {
	if number != p.places.number {
		return
	}
	for ; len(body) >= 4; body = body[4:] {
		i := binary.LittleEndian.Uint32(body)
		if uint64(i) >= uint64(len(p.places.berths)) || !p.places.berths[i].used || p.places.writers[i] != nil {
			p.protocolError("gave berth %d back, which this rank does not use, or is still writing to", i)
			return
		}
		p.places.berths[i].used = false
	}
}

// berthFor is the berth that a named send may be written to, if there is one.
func (p *peer) berthFor(req *Request) (i uint32, ok bool) {
	if req.tensor == nil || len(p.places.berths) == 0 || p.places.next != nil || len(req.buf) == 0 || p.credit < envelopeCost {
		return 0, false
	}
	name, known := p.namesOut[req.key.name]
	if !known { // its number would be 0, for which a peer may have laid out something
		return 0, false
	}
	i, ok = p.places.by[tensorID{req.mc.id, name}]
	return i, ok && !p.places.berths[i].used && uint64(len(req.buf)) <= p.places.berths[i].size
}

// placeIn writes op to a berth.
func (p *peer) placeIn(req *Request, i uint32) {
	s := &p.places.berths[i]
	s.used = true
	p.places.open++
	p.credit -= envelopeCost
	p.places.writers[i] = req
	req.phase, req.inBerth, req.untold = phaseFlowing, i, true
	req.token, req.base = p.places.token, int(s.off)
	p.enqueueData(req)
}

// tell says that op lies in its berth, behind the last of its bytes.
func (p *peer) tell(req *Request) {
	var h frameHeader
	p.fillHeader(req, &h)
	h.kind, h.id = kindPlaced, req.inBerth
	p.sendControl(h)
	p.ashore(req)
	p.changePlaces()
}

// ashore notes that nothing of op's is being written to its berth any more.
func (p *peer) ashore(req *Request) {
	req.untold = false
	p.places.writers[req.inBerth] = nil
	p.places.open--
}

// unplace frees the berth of a send that ended before the peer was told of it.
func (p *peer) unplace(req *Request) {
	if !req.untold {
		return
	}
	p.places.berths[req.inBerth].used = false
	p.ashore(req)
	if p.gone == nil && p.connErr == nil {
		p.changePlaces()
		p.addCredit(0, 0)
	}
}

// overtakes reports whether op's envelope would come before that of an earlier message
// with its key, which is still being written to a berth: to op's own, for a berth is one
// tensor's.
func (p *peer) overtakes(req *Request) bool {
	if req.tensor == nil || p.places.open == 0 {
		return false
	}
	i, ok := p.places.by[tensorID{req.mc.id, p.namesOut[req.key.name]}]
	if !ok {
		return false
	}
	s := p.places.writers[i]
	return s != nil && s.mc == req.mc && s.key == req.key
}
