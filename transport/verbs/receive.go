package verbs

import (
	"errors"
	"fmt"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/verbs/internal/rdma"
)

// deliver handles arrivals until one of them delivers something to the Sink. It polls the device up
// to the given number of times for the first arrival, and once for each later arrival.
//
// Each arrival passes through these steps. Its message buffer is not reused before the last
// step:
//
//	nextArrival        polls completions, posts what they make possible, pops the oldest arrival
//	stepFlow           steps the flow, which interprets the arrival
//	deliverArrival     calls the Sink, without mu
//	repostAndUnlock    posts the buffer again, which is a credit for the peer
func (c *conn) deliver(in transport.Sink, spins int) (transport.State, error) {
	state := transport.Idle
	// Arrivals that carry no frame, such as ACKs, do not end the loop. The loop is bounded, so
	// that a peer that sends only such messages cannot keep Progress from returning.
	for range maxDepth {
		e, moved, ok, err := c.nextArrival(spins)
		spins = 1
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
		if c.handleArrival(e, in) {
			return state, nil
		}
	}
	return state, nil
}

// nextArrival polls the device, posts what can be posted, and returns the oldest arrival. It
// returns the Conn's error once nothing is left to deliver.
func (c *conn) nextArrival(spins int) (e rdma.Completion, moved, ok bool, err error) {
	c.mu.Lock()
	l := c.endpoint
	// After a failure, complete arrivals are still delivered, with one exception: if the peer's
	// last frame on the set-up link is missing, the arrivals would be out of order.
	if l == nil || c.closed || c.err != nil && (l.arrivals.n == 0 || !c.recvSwitched.Load()) {
		err = c.err
		c.mu.Unlock()
		if l != nil && err != nil {
			c.releaseIfDrained()
		}
		return e, false, false, err
	}
	if l.arrivals.n > 0 {
		spins = 1 // an arrival is available already; poll only for frames that are Done
	}
	if c.err == nil {
		moved = c.poll(spins) > 0
	}
	// The queue pair has failed. fail polls the remaining completions. The nested call returns
	// their arrivals first, and the error after them.
	if l.err != nil && c.err == nil {
		err = l.err
		c.mu.Unlock()
		c.fail(err, false)
		return c.nextArrival(1)
	}
	// Arrivals wait until the peer's last frame on the set-up link has been delivered, which
	// keeps the order. The arrival's buffer belongs to this goroutine until repostAndUnlock.
	if ok = l.arrivals.n > 0 && c.recvSwitched.Load(); ok {
		e = l.arrivals.pop()
	}
	moved = moved || c.finished.First != nil
	if c.err != nil {
		c.mu.Unlock()
		return e, moved, ok, nil
	}
	posted := c.pumpAndUnlock()
	return e, moved || posted, ok, nil
}

// handleArrival handles one arrival. It reports whether it has delivered something to the Sink.
func (c *conn) handleArrival(e rdma.Completion, in transport.Sink) bool {
	c.mu.Lock()
	l := c.endpoint
	buf := l.buffer(l.recvBuffers, e.ID)[:min(e.Bytes, l.bufferSize)]
	out, err := c.stepFlow(e, buf)
	if out.op == outSkip {
		c.skipFrame()
	}
	if out.op == outNone || out.op == outSkip || err != nil {
		c.repostAndUnlock(e.ID, err)
		return false
	}
	// A requested body is complete. Its registration must end before the Sink may use the memory
	// for something else.
	var last *registration
	if out.op == outBodyPart && c.bodyReg != nil && out.size == uint64(c.header.Size) {
		last, c.bodyReg = c.bodyReg, nil
	}
	c.mu.Unlock()
	last.release() // the whole body has arrived, so no write is in flight
	err = c.deliverArrival(&out, buf, in)
	c.mu.Lock()
	c.repostAndUnlock(e.ID, err)
	return true
}

// stepFlow passes one arrival to the flow, and returns the action that the flow asks for. mu is
// held.
func (c *conn) stepFlow(e rdma.Completion, buf []byte) (output, error) {
	if e.Write {
		return c.flow.step(input{op: inWrite, handle: e.Imm, size: uint64(e.Bytes)})
	}
	p, err := parse(buf)
	if err != nil {
		return output{}, err
	}
	return c.flow.step(input{op: inMessage, packet: p})
}

// repostAndUnlock posts receive id again, then posts what the arrival has made possible, and
// unlocks mu. If err is not nil, it fails the Conn instead. An err without a Kind is a protocol
// error of the peer.
func (c *conn) repostAndUnlock(id uint64, err error) {
	if err != nil {
		c.mu.Unlock()
		// An error of the Sink, or of registering its memory, has a Kind already. All other errors
		// are protocol violations of the peer.
		var f *fault.Error
		if !errors.As(err, &f) {
			err = failure(fault.LinkLost, "protocol error of the peer", err)
		}
		c.fail(err, true)
		return
	}
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	if err := c.endpoint.postReceive(id); err != nil {
		c.endpoint.setError(failure(fault.LinkLost, "post a receive", err))
	}
	// The posted receive is a credit for the peer. The next message grants it, or an ACK.
	c.flow.step(input{op: inReposted})
	c.pumpAndUnlock()
}

// deliverArrival passes an arrival to the Sink. No lock is held.
func (c *conn) deliverArrival(out *output, buf []byte, in transport.Sink) error {
	switch out.op {
	case outFrame:
		return c.deliverFrame(out, buf, in)
	case outNeedBuffer:
		return c.requestBuffer(&out.packet, buf, in)
	case outBodyPart:
		in.Arrived(c.header, int(out.size))
	case outExposedFrame:
		in.Arrived(transport.Header{ID: out.id, Size: int(out.size)}, int(out.size))
	}
	return nil
}

// deliverFrame passes a frame to the Sink. The body of the frame lies in the message or in the
// ring.
func (c *conn) deliverFrame(out *output, buf []byte, in transport.Sink) error {
	head := buf[packetLen : packetLen+out.packet.head]
	h := transport.Header{Head: head, ID: out.packet.id, Size: int(out.packet.size)}
	body := buf[packetLen+len(head):]
	if out.packet.flag == flagInRing {
		body = c.endpoint.recvRing.Mem[out.off:][:h.Size]
	}
	// A CopySink copies directly from the message buffer. So it need not find memory for the body
	// first.
	if t, ok := in.(transport.CopySink); ok {
		t.Copy(h, body)
		return nil
	}
	dst := in.Buffer(h)
	// Buffer may have called Close. Nothing may be delivered after that.
	if err := checkBuffer(dst, h.Size); err != nil || c.isClosed() {
		return err
	}
	if dst != nil {
		copy(dst, body)
	}
	in.Arrived(h, h.Size)
	return nil
}

// requestBuffer asks the Sink for memory for a body, registers it, and answers the peer.
func (c *conn) requestBuffer(p *packet, buf []byte, in transport.Sink) error {
	if c.hasFailed() {
		return nil // the Conn has failed, so the body will not arrive
	}
	// The message buffer is posted again before the body arrives, so the head is copied.
	n := copy(c.head[:], buf[packetLen:packetLen+p.head])
	c.header = transport.Header{Head: c.head[:n], ID: p.id, Size: int(p.size)}
	dst := in.Buffer(c.header)
	if err := checkBuffer(dst, c.header.Size); err != nil {
		return err
	}
	if dst == nil {
		return c.declineBody(in)
	}
	if !c.transport.acquireDevice() {
		return nil // Close of the Transport ends the Conn
	}
	defer c.transport.releaseDevice()
	l, err := c.transport.remoteCache.acquire(dst[:p.size])
	if err != nil {
		return err
	}
	// Only later bodies use the ring. The current body still goes to the memory registered above.
	ring := c.newRing(int(p.size))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		l.invalidate()
		if ring != nil {
			ring.Deregister()
		}
		return nil
	}
	if ring != nil {
		c.endpoint.recvRing = ring
		if _, err := c.flow.step(input{op: inRingReady, size: uint64(len(ring.Mem)), addr: ring.Addr, rkey: ring.RKey}); err != nil {
			return err
		}
	}
	c.bodyReg = l
	_, err = c.flow.step(input{op: inAccept, size: p.size, addr: rdma.AddressOf(dst), rkey: l.region.RKey})
	return err
}

// newRing allocates the eager ring when the first body arrives that could have used a ring. So
// links with little traffic have no ring. It returns nil if a ring exists, if the body is too
// large for a ring, or if the device has no memory left. Without a ring, such bodies are slower
// but still arrive. Only Progress calls newRing.
func (c *conn) newRing(size int) *rdma.Region {
	o := &c.transport.opts
	if c.endpoint.recvRing != nil || size > o.Ring/4 {
		return nil
	}
	r, err := c.transport.device.Alloc(o.Ring, true)
	if err != nil {
		return nil
	}
	return r
}

// declineBody tells the peer not to send the body. It then calls Arrived with the full size of
// the body, which ends the frame for the Sink.
func (c *conn) declineBody(in transport.Sink) error {
	c.mu.Lock()
	_, err := c.flow.step(input{op: inDecline})
	closed := c.closed
	c.mu.Unlock()
	if err == nil && !closed {
		in.Arrived(c.header, c.header.Size)
	}
	return err
}

// isClosed reports whether the Conn is closed. Nothing more may then be delivered to the Sink.
func (c *conn) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// checkBuffer returns an error if the Sink's memory is too small for the body.
func checkBuffer(dst []byte, size int) error {
	if dst != nil && len(dst) < size {
		return failure(fault.Misuse, "progress", fmt.Errorf("the Sink's Buffer returned %d bytes for a body of %d", len(dst), size))
	}
	return nil
}

// registrationError returns the error for n bytes of memory that the device refuses to register.
func registrationError(n int, err error) error {
	return failure(fault.Exhausted, "register memory", fmt.Errorf(
		"%d bytes: %w; raise the limit on locked memory (ulimit -l unlimited, or LimitMEMLOCK of the service)", n, err))
}
