package verbs

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/verbs/internal/rdma"
)

// segmentSize is the maximum size of one write in bytes. Bodies are split, so that the receiver
// can work on the first bytes while later bytes arrive.
const segmentSize = 256 << 10

// signalEvery is the minimum number of signaled work requests among any depth consecutive work
// requests, where depth is the number of buffers. The last work request of each post is always
// signaled. The other signaled work requests only free buffers.
const signalEvery = 4

// pumpAndUnlock posts as many work requests as possible, unlocks mu, and runs the Done of each
// finished frame. It reports whether it has posted anything. If the caller of Send has violated the
// contract, the Conn fails.
func (c *conn) pumpAndUnlock() (posted bool) {
	before := c.postedCount()
	err := c.pump()
	posted = c.postedCount() != before
	done := c.finished
	c.finished = transport.Queue{}
	c.mu.Unlock()
	finish(&done, nil)
	if err != nil {
		c.fail(err, false)
	}
	return posted
}

// postedCount returns the number of work requests that have been posted so far. mu is held.
func (c *conn) postedCount() uint64 {
	if c.endpoint == nil {
		return 0
	}
	return c.endpoint.posted
}

// pump posts work requests in one call to the device. It stops when the endpoint has no room,
// when the peer has no posted receive, or when nothing is left to post. mu is held.
//
// In each turn of the loop, the flow chooses one work request to post:
//
//	nextFrame          gives the flow the next frame, if it has none
//	flow.step          chooses: a message about memory, a part of the frame, or an ACK
//	buildWorkRequest   encodes that into a send buffer, or refers to the frame's body
//
// A frame waits in the queue out, and then moves to current. Once all its work requests are posted,
// the last of them refers to the frame. When that work request completes (completeThrough), the
// frame moves to finished. Its Done runs after mu is unlocked.
func (c *conn) pump() error {
	l := c.endpoint
	if c.stage != live || c.err != nil || l.err != nil {
		return nil
	}
	var fail error
	l.batch = l.batch[:0]
	// isIdle is checked first because most calls of pump find nothing to do.
	for l.hasRoom() && fail == nil && !(c.flow.isIdle() && c.out.First == nil) {
		if fail = c.nextFrame(); fail != nil {
			break
		}
		out, err := c.flow.step(input{op: inNext})
		// The caller of Send has caused the error, because its frame names memory that is not
		// exposed or is too small.
		if err != nil {
			fail = failure(fault.Misuse, "send", err)
		}
		if out.op == outNone {
			break
		}
		c.buildWorkRequest(&out)
	}
	if n := len(l.batch); n > 0 {
		// The last work request of a batch is signaled, so that a Done never waits for a later
		// frame.
		l.batch[n-1].Signaled = true
		c.post()
	}
	return fail
}

// post posts the batch to the device. mu is held.
func (c *conn) post() {
	l := c.endpoint
	if w := &l.batch[len(l.batch)-1]; w.Signaled {
		l.lastSignaled = w.ID
	}
	if err := l.qp.Send(l.batch); err != nil {
		c.postFailed(err)
	}
}

// postFailed sets the error of an endpoint whose device refuses a work request. It also fires Arm,
// because there may be no outstanding completion that would fire it. mu is held.
func (c *conn) postFailed(err error) {
	for c.poll(1) > 0 { // a failed completion may contain the reason
	}
	c.endpoint.setError(failure(fault.LinkLost, "post", fmt.Errorf("%s: %w", c.transport.device.Describe(), err)))
	c.transport.caller.Call(c.fireFunc)
}

// nextFrame passes the next frame to the flow if the flow has none. It first registers a body
// that does not fit a message. mu is held.
func (c *conn) nextFrame() error {
	if c.flow.out.phase != idle || c.out.First == nil {
		return nil
	}
	f := c.out.Pop()
	c.current, c.unposted = f, sizeOf(f)
	c.body = c.bodyOf(f)
	fr := frame{head: len(f.Head), size: uint64(len(c.body)), id: f.ID}
	if f.To != (transport.Token{}) {
		fr.exposed, fr.at = true, uint64(f.Offset)
		var err error
		if fr.handle, err = handleIn(f.To, c.peer.salt); err != nil {
			return failure(fault.Misuse, "send", err)
		}
	}
	// The device reads a body that does not fit a message directly from the memory of the body,
	// which must be registered. A shorter body is copied into the message buffer.
	if fr.exposed && fr.size > 0 || fr.size > uint64(c.flow.payload-fr.head) {
		reg, err := c.transport.localCache.acquire(c.body)
		if err != nil {
			return err
		}
		c.currentReg = reg
	}
	_, err := c.flow.step(input{op: inFrame, frame: fr})
	return err
}

// buildWorkRequest appends the work request for out to the batch. mu is held.
func (c *conn) buildWorkRequest(out *output) {
	l := c.endpoint
	l.posted++
	w := rdma.WorkRequest{ID: l.posted, Signaled: l.isSignalDue()}
	if out.op == outWriteImm || out.op == outWrite {
		w.Write, w.NoImm, w.Imm = true, out.op == outWrite, out.handle
		w.RemoteAddr, w.RKey = out.remote.addr+out.at, out.remote.rkey
		if out.size > 0 {
			w.Mem, w.LKey = c.body[out.off:out.off+out.size], c.currentReg.region.LKey
		}
	} else {
		b := l.buffer(l.sendBuffers, l.posted)
		out.packet.put(b)
		n := packetLen
		if out.packet.head > 0 {
			n += copy(b[n:], c.current.Head)
		}
		if out.packet.kind == tensorWrite && out.packet.flag != flagInRing {
			n += copy(b[n:], c.body)
		}
		w.Mem, w.LKey, w.Inline = b[:n], l.sendBuffers.LKey, n <= l.qp.Inline()
	}
	var pending outstanding
	switch {
	// The last work request completes the whole frame, because work requests complete in the order
	// posted.
	case out.last:
		pending = outstanding{frame: c.current, reg: c.currentReg, bytes: c.unposted}
		c.current, c.currentReg = nil, nil
	// When a write in the middle of a body completes, Unsent decreases by its bytes. So a long body
	// shows progress.
	case w.Write:
		pending.bytes = len(w.Mem)
	}
	c.unposted -= pending.bytes
	l.outstanding[l.posted%uint64(l.depth)] = pending
	l.batch = append(l.batch, w)
}

// skipFrame ends the current frame, which the receiver has declined. mu is held.
func (c *conn) skipFrame() {
	c.unsent.sub(c.unposted)
	c.finished.Push(c.current)
	c.currentReg.release()
	if c.current.Parts != nil {
		c.reuse(c.body)
	}
	c.current, c.currentReg, c.body = nil, nil, nil
}

// maxStaging is the maximum number of buffers that a Conn keeps for copies of bodies in parts. With
// a kept buffer, such a frame needs no allocation. The memory of a kept buffer also stays
// registered.
const maxStaging = 4

// bodyOf returns the body of f in one piece, because a work request refers to one piece of
// memory. It copies a body that is in parts. mu is held.
func (c *conn) bodyOf(f *transport.Frame) []byte {
	if f.Parts == nil {
		return f.Body
	}
	var b []byte
	if n := len(c.staging); n > 0 {
		b, c.staging = c.staging[n-1], c.staging[:n-1]
	}
	if size := f.Size(); cap(b) < size {
		b = make([]byte, 0, size)
	}
	b = append(b[:0], f.Body...)
	for _, p := range f.Parts {
		b = append(b, p...)
	}
	return b
}

// reuse keeps b, the copy of a body, for the next frame in parts. mu is held.
func (c *conn) reuse(b []byte) {
	if cap(b) > 0 && len(c.staging) < maxStaging {
		c.staging = append(c.staging, b)
	}
}

// A Token names memory that a Conn has exposed. The Conn that has exposed the memory makes the
// Token.
//
//	bytes 0..3   the handle, uint32, little-endian
//	bytes 4..7   "RDMA"
//	bytes 8..15  the Conn's salt
//	bytes 16..31 zero
const tokenMark = "RDMA"

// token returns the Token of a handle of this end.
func (c *conn) token(handle uint32) (t transport.Token) {
	binary.LittleEndian.PutUint32(t[:], handle)
	copy(t[4:], tokenMark)
	binary.LittleEndian.PutUint64(t[8:], c.salt)
	return t
}

var errForeignToken = errors.New("got a token that the peer of this Conn has not made")

// handleIn returns the handle in a Token of the peer.
func handleIn(t transport.Token, salt uint64) (uint32, error) {
	handle := binary.LittleEndian.Uint32(t[:])
	if string(t[4:8]) != tokenMark || binary.LittleEndian.Uint64(t[8:]) != salt || handle&more != 0 {
		return 0, errForeignToken
	}
	return handle, nil
}
