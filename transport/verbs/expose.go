package verbs

import (
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// An exposure is the device's side of one place. release is made once per slot and
// given out at each use.
type exposure struct {
	region  *region
	place   uint32
	release func()
}

func (x *exposure) drop() {
	if x.region != nil {
		x.region.drop()
		x.region = nil
	}
}

// Expose registers buf for the peer's writes, and tells the peer by a
// TENSOR_REQUEST, which goes before any frame sent from now on. The registration
// is this exposure's own: after release the device refuses what comes late.
// fault.Exhausted: the device takes no more memory, or the Conn has 4096 exposures.
func (c *conn) Expose(id uint32, buf []byte) (transport.Token, func(), error) {
	if !c.home.enter() {
		return transport.Token{}, nil, failure(fault.Closed, "expose", nil)
	}
	defer c.home.leave()
	r := &region{}
	if len(buf) > 0 {
		var err error
		if r, err = c.home.device.register(buf, true); err != nil {
			return transport.Token{}, nil, unregistered(len(buf), err)
		}
	}
	c.mu.Lock()
	err := c.err
	var out output
	if err == nil {
		out, err = c.flow.step(input{do: exposed, id: id, size: uint64(len(buf)), addr: r.addr, rkey: r.rkey})
		if err != nil {
			err = failure(fault.Exhausted, "expose", err)
		}
	}
	if err != nil {
		c.mu.Unlock()
		if r.drop != nil {
			r.drop()
		}
		return transport.Token{}, nil, err
	}
	x := c.exposureOf(slotOf(out.place))
	x.place = out.place
	if r.drop != nil {
		x.region = r
	}
	release := x.release
	c.pumpAndUnlock()
	return c.token(out.place), release, nil
}

// exposureOf is the entry of a slot, made when needed. mu is held. Entries do not
// move once c.exposures has the room that flow.mine may need.
func (c *conn) exposureOf(slot int) *exposure {
	for slot >= len(c.exposures) {
		slot := len(c.exposures)
		c.exposures = append(c.exposures, exposure{release: func() { c.conceal(slot) }})
	}
	return &c.exposures[slot]
}

// conceal ends the exposure of a slot.
func (c *conn) conceal(slot int) {
	c.mu.Lock()
	x := &c.exposures[slot]
	r := x.region
	x.region = nil
	if c.err != nil {
		c.mu.Unlock()
	} else {
		c.flow.step(input{do: concealed, place: x.place})
		c.pumpAndUnlock()
	}
	if r != nil {
		r.drop()
	}
}
