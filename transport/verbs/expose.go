package verbs

import (
	"errors"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// An exposure is the device's side of one place. release is made once per slot and
// given out at each use.
type exposure struct {
	lease   *lease
	place   uint32
	release func()
}

// Expose has the device let the peer write to buf, and tells the peer by a
// TENSOR_REQUEST, which goes before any frame sent from now on. After release the
// device refuses what comes late, unless nothing can: then buf stays registered for
// the next time. With the id transport.Unheard the peer writes in silence, as often as
// it wants: no receive, no credit and no completion here is spent on it.
//
// fault.Exhausted: the device takes no more memory, or the Conn has 4096 exposures.
// fault.Refused: it has no queue pair, because its peer has asked for none (see
// Options.OnRequest), or the id is transport.Unheard with Options.Fresh, for such
// memory is registered once for many uses.
func (c *conn) Expose(id uint32, buf []byte) (transport.Token, func(), error) {
	if !c.home.enter() {
		return transport.Token{}, nil, failure(fault.Closed, "expose", nil)
	}
	defer c.home.leave()
	if !c.isWanted() {
		return transport.Token{}, nil, failure(fault.Refused, "expose", errPlain)
	}
	if id == transport.NoNotify && c.home.opts.Fresh {
		return transport.Token{}, nil, failure(fault.Refused, "expose", errFresh)
	}
	in := input{do: exposed, id: id, kept: id == transport.NoNotify, size: uint64(len(buf))}
	var l *lease
	if len(buf) > 0 {
		var err error
		if l, err = c.home.shown.take(buf); err != nil {
			return transport.Token{}, nil, err
		}
		in.addr, in.rkey = addressOf(buf), l.region.rkey
	}
	c.mu.Lock()
	err := c.err
	var out output
	if err == nil {
		if out, err = c.flow.step(in); err != nil {
			err = failure(fault.Exhausted, "expose", err)
		}
	}
	if err != nil {
		c.mu.Unlock()
		l.free()
		return transport.Token{}, nil, err
	}
	x := c.exposureOf(slotOf(out.place))
	x.place, x.lease = out.place, l
	release := x.release
	c.pumpAndUnlock()
	return c.token(out.place), release, nil
}

var (
	errPlain = errors.New("the peer has no queue pair")
	errFresh = errors.New("memory that is written unasked, use after use, would stay registered, which Options.Fresh (TUTTI_VERBS_FRESH) rules out")
)

func (c *conn) isWanted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wanted
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
	l := x.lease
	x.lease = nil
	if c.err != nil {
		c.mu.Unlock()
		l.drop()
		return
	}
	out, _ := c.flow.step(input{do: concealed, place: x.place})
	c.pumpAndUnlock()
	if out.quiet {
		l.free()
	} else {
		l.drop()
	}
}
