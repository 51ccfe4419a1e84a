package verbs

import (
	"errors"
	"fmt"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// deliver takes arrivals until one of them is something of a frame's.
func (c *conn) deliver(in transport.Sink, looks int) (transport.State, error) {
	state := transport.Idle
	for range maxDepth {
		e, moved, ok, err := c.next(looks)
		looks = 1
		if moved {
			state = transport.Moved
		}
		if err != nil {
			return transport.Idle, err
		}
		if !ok {
			return state, nil
		}
		state = transport.Moved
		if c.take(e, in) {
			return state, nil
		}
	}
	return state, nil
}

// next polls the queue pair, posts what can go, and returns the oldest arrival.
// The error is the Conn's, once nothing is left to be delivered.
func (c *conn) next(looks int) (e completion, moved, ok bool, err error) {
	c.mu.Lock()
	l := c.line
	if l == nil || c.shut || c.err != nil && (l.in.n == 0 || !c.switched.Load()) {
		err = c.err
		c.mu.Unlock()
		if l != nil && err != nil {
			c.spend()
		}
		return e, false, false, err
	}
	if l.in.n > 0 {
		looks = 1 // nothing is waited for, but a Done may be due
	}
	if c.err == nil {
		moved = c.reap(looks) > 0
	}
	if l.err != nil && c.err == nil {
		err = l.err
		c.mu.Unlock()
		c.end(err, false)
		return c.next(1)
	}
	if ok = l.in.n > 0 && c.switched.Load(); ok {
		e = l.in.pop()
	}
	moved = moved || !c.finished.Empty()
	if c.err != nil {
		c.mu.Unlock()
		return e, moved, ok, nil
	}
	posted := c.pumpAndUnlock()
	return e, moved || posted, ok, nil
}

// take handles one arrival; true when it was a frame's.
func (c *conn) take(e completion, in transport.Sink) bool {
	c.mu.Lock()
	l := c.line
	buf := l.buffer(l.recv, e.id)[:min(e.bytes, l.size)]
	out, err := c.interpret(e, buf)
	if out.do == skip {
		c.skipped()
	}
	if out.do == nothing || out.do == skip || err != nil {
		c.repostAndUnlock(e.id, err)
		return false
	}
	var last *lease
	if out.do == part && c.placing != nil && out.size == uint64(c.header.Size) {
		last, c.placing = c.placing, nil
	}
	c.mu.Unlock()
	last.free() // all of it has come: nothing is on its way there
	err = c.hand(&out, buf, in)
	c.mu.Lock()
	c.repostAndUnlock(e.id, err)
	return true
}

// interpret steps the flow with one arrival. mu is held.
func (c *conn) interpret(e completion, buf []byte) (output, error) {
	if e.write {
		return c.flow.step(input{do: wrote, place: e.imm, size: uint64(e.bytes)})
	}
	p, err := parse(buf)
	if err != nil {
		return output{}, err
	}
	return c.flow.step(input{do: came, packet: p})
}

// repostAndUnlock posts a receive again, and what the arrival made possible. An
// error is the peer's fault.
func (c *conn) repostAndUnlock(id uint64, err error) {
	if err != nil {
		c.mu.Unlock()
		var f *fault.Error
		if !errors.As(err, &f) {
			err = failure(fault.LinkLost, "the peer has broken the protocol", err)
		}
		c.end(err, true)
		return
	}
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	if err := c.line.post(id); err != nil {
		c.line.fail(failure(fault.LinkLost, "post a receive", err))
	}
	c.flow.step(input{do: reposted})
	c.pumpAndUnlock()
}

// hand gives an arrival to the Sink. No lock is held.
func (c *conn) hand(out *output, buf []byte, in transport.Sink) error {
	switch out.do {
	case small:
		return c.handWhole(out, buf, in)
	case ask:
		return c.place(&out.packet, buf, in)
	case part:
		in.Arrived(c.header, int(out.size))
	case direct:
		in.Arrived(transport.Header{ID: out.id, Size: int(out.size)}, int(out.size))
	}
	return nil
}

// handWhole gives a frame to the Sink that lies in a message, or in the strip.
func (c *conn) handWhole(out *output, buf []byte, in transport.Sink) error {
	head := buf[packetLen : packetLen+out.packet.head]
	h := transport.Header{Head: head, ID: out.packet.id, Size: int(out.packet.size)}
	body := buf[packetLen+len(head):]
	if out.packet.flag == flagLanded {
		body = c.line.strip.mem[out.off:][:h.Size]
	}
	if t, ok := in.(transport.CopySink); ok {
		t.Copy(h, body)
		return nil
	}
	dst := in.Buffer(h)
	if err := fits(dst, h.Size); err != nil || c.isShut() {
		return err
	}
	if dst != nil {
		copy(dst, body)
	}
	in.Arrived(h, h.Size)
	return nil
}

// place asks the Sink for memory for a body, and answers the peer.
func (c *conn) place(p *packet, buf []byte, in transport.Sink) error {
	if c.failed() {
		return nil // its body will not come
	}
	n := copy(c.head[:], buf[packetLen:packetLen+p.head])
	c.header = transport.Header{Head: c.head[:n], ID: p.id, Size: int(p.size)}
	dst := in.Buffer(c.header)
	if err := fits(dst, c.header.Size); err != nil {
		return err
	}
	if dst == nil {
		return c.decline(in)
	}
	if !c.home.enter() {
		return nil // Close ends the Conn
	}
	defer c.home.leave()
	l, err := c.home.shown.take(dst[:p.size])
	if err != nil {
		return err
	}
	strip := c.newStrip(int(p.size))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		l.drop()
		if strip != nil {
			strip.drop()
		}
		return nil
	}
	if strip != nil {
		c.line.strip = strip
		if _, err := c.flow.step(input{do: laid, size: uint64(len(strip.mem)), addr: strip.addr, rkey: strip.rkey}); err != nil {
			return err
		}
	}
	c.placing = l
	_, err = c.flow.step(input{do: placed, size: p.size, addr: addressOf(dst), rkey: l.region.rkey})
	return err
}

// newStrip makes the strip when the first body comes that it would have been good
// for, so that links which carry little do without one; nil when there is none to be
// made. That the device takes no more memory costs speed here, and no more. The
// caller is in Progress, which alone makes strips.
func (c *conn) newStrip(size int) *region {
	o := &c.home.opts
	if c.line.strip != nil || size > o.Strip/4 {
		return nil
	}
	r, err := c.home.device.alloc(o.Strip, true)
	if err != nil {
		return nil
	}
	return r
}

// decline drops the body that is asked about: it need not come.
func (c *conn) decline(in transport.Sink) error {
	c.mu.Lock()
	_, err := c.flow.step(input{do: declined})
	shut := c.shut
	c.mu.Unlock()
	if err == nil && !shut {
		in.Arrived(c.header, c.header.Size)
	}
	return err
}

func (c *conn) isShut() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.shut
}

// fits refuses a place that is too small for the body.
func fits(dst []byte, size int) error {
	if dst != nil && len(dst) < size {
		return failure(fault.Misuse, "progress", fmt.Errorf("the place returned has %d bytes for a body of %d", len(dst), size))
	}
	return nil
}

// unregistered is the error of memory that the device did not take.
func unregistered(n int, err error) error {
	return failure(fault.Exhausted, "register memory", fmt.Errorf(
		"%d bytes: %w; raise the limit on locked memory (ulimit -l unlimited, or LimitMEMLOCK of the service)", n, err))
}
