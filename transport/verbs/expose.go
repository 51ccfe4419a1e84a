package verbs

import (
	"errors"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/verbs/internal/rdma"
)

// An exposure is the state of one slot of exposed memory. Its function release is made once per
// slot. Each Expose that uses the slot returns this function.
//
//	Expose      acquires a registration, announces it by TENSOR_REQUEST
//	writes      arrive; handleWrite counts their bytes
//	release     announces the end by BUFFER_IDLE, and returns the registration to the cache if
//	            no write can be in flight; else it ends the registration, so that the device
//	            refuses a late write
//
// If the device refuses a write of a peer, the link fails. This happens only if a receive is
// canceled while its sender writes.
type exposure struct {
	reg     *registration
	handle  uint32
	release func()
}

// Expose implements transport.Exposer. It registers buf for the peer and announces it by a
// TENSOR_REQUEST, which precedes all later frames. After release the device refuses late writes. If
// no write can be in flight, buf stays registered for its next use. With the ID transport.NoNotify
// the peer writes any number of times without notification. Such a write uses no receive, credit or
// completion here.
//
// It returns fault.Exhausted if the device cannot register more memory, or if the Conn has 4096
// exposures. It returns fault.Refused if the Conn has no queue pair because its peer has not
// requested one (Options.OnRequest). It also returns fault.Refused if the ID is transport.NoNotify
// and Options.Fresh is set, because such memory stays registered for many uses.
func (c *conn) Expose(id uint32, buf []byte) (transport.Token, func(), error) {
	if !c.transport.acquireDevice() {
		return transport.Token{}, nil, failure(fault.Closed, "expose", nil)
	}
	defer c.transport.releaseDevice()
	if !c.isWanted() {
		return transport.Token{}, nil, failure(fault.Refused, "expose", errNoQueuePair)
	}
	if id == transport.NoNotify && c.transport.opts.Fresh {
		return transport.Token{}, nil, failure(fault.Refused, "expose", errFresh)
	}
	// Memory of no bytes is exposed without a registration, because only frames of no bytes can be
	// written there.
	in := input{op: inExpose, id: id, noNotify: id == transport.NoNotify, size: uint64(len(buf))}
	var l *registration
	if len(buf) > 0 {
		var err error
		if l, err = c.transport.remoteCache.acquire(buf); err != nil {
			return transport.Token{}, nil, err
		}
		in.addr, in.rkey = rdma.AddressOf(buf), l.region.RKey
	}
	c.mu.Lock()
	err := c.err
	var out output
	if err == nil {
		if out, err = c.flow.step(in); err != nil {
			err = failure(fault.Exhausted, "expose", err)
		}
	}
	// Nothing was announced to the peer, so the registration may stay cached.
	if err != nil {
		c.mu.Unlock()
		l.release()
		return transport.Token{}, nil, err
	}
	x := c.exposureOf(slotOf(out.handle))
	x.handle, x.reg = out.handle, l
	release := x.release
	c.pumpAndUnlock()
	return c.token(out.handle), release, nil
}

var (
	errNoQueuePair = errors.New("the peer has not requested a queue pair")
	errFresh       = errors.New("memory for many writes cannot be exposed: it stays registered, and Options.Fresh (TUTTI_VERBS_FRESH) forbids this; unset it, or expose memory for each write")
)

// isWanted reports whether a queue pair is wanted.
func (c *conn) isWanted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wanted
}

// exposureOf returns the entry of a slot, and makes it if needed. It is valid until the next
// call. mu is held.
func (c *conn) exposureOf(slot int) *exposure {
	for slot >= len(c.exposures) {
		slot := len(c.exposures)
		c.exposures = append(c.exposures, exposure{release: func() { c.unexpose(slot) }})
	}
	return &c.exposures[slot]
}

// unexpose ends the exposure of a slot.
func (c *conn) unexpose(slot int) {
	c.mu.Lock()
	x := &c.exposures[slot]
	l := x.reg
	x.reg = nil
	// The Conn has failed, so it is unknown whether the peer still writes.
	if c.err != nil {
		c.mu.Unlock()
		l.invalidate()
		return
	}
	out, _ := c.flow.step(input{op: inUnexpose, handle: x.handle})
	c.pumpAndUnlock()
	// The field drained means that the peer has written as many bytes as it may. Only then can the
	// registration serve another use.
	if out.drained {
		l.release()
	} else {
		l.invalidate()
	}
}
