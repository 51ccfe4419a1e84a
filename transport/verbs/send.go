package verbs

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/verbs/internal/rdma"
)

// segmentSize is the most bytes of one write: so that what lies above can work on
// the first bytes while the next ones arrive.
const segmentSize = 256 << 10

// signalEvery is after how many works one at least is signalled, as a part of the
// depth. The last one posted always is; the others only take room.
const signalEvery = 4

// pumpAndUnlock posts what can be posted, unlocks mu, and runs what Done is due.
// A Conn that breaks the protocol fails. It reports whether anything was posted.
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

func (c *conn) postedCount() uint64 {
	if c.endpoint == nil {
		return 0
	}
	return c.endpoint.posted
}

// pump posts as much as the queue pair has room and the peer has receives for, in
// one call to the device. mu is held.
func (c *conn) pump() error {
	l := c.endpoint
	if c.stage != live || c.err != nil || l.err != nil {
		return nil
	}
	var fail error
	l.batch = l.batch[:0]
	for l.hasRoom() && fail == nil && !(c.flow.isIdle() && c.out.First == nil) {
		if fail = c.nextFrame(); fail != nil {
			break
		}
		out, err := c.flow.step(input{op: inNext})
		if err != nil {
			fail = failure(fault.Misuse, "send", err)
		}
		if out.op == outNone {
			break
		}
		c.buildWorkRequest(&out)
	}
	if n := len(l.batch); n > 0 {
		l.batch[n-1].Signaled = true
		c.post()
	}
	return fail
}

// post gives the works that were put together to the device. mu is held.
func (c *conn) post() {
	l := c.endpoint
	if w := &l.batch[len(l.batch)-1]; w.Signaled {
		l.lastSignaled = w.ID
	}
	if err := l.qp.Send(l.batch); err != nil {
		c.postFailed(err)
	}
}

// postFailed fails the queue pair that has refused works, and wakes who sleeps: nothing
// need be on its way that would. mu is held.
func (c *conn) postFailed(err error) {
	for c.poll(1) > 0 { // the reason may lie there
	}
	c.endpoint.setError(failure(fault.LinkLost, "post", fmt.Errorf("%s: %w", c.transport.device.Describe(), err)))
	c.transport.caller.Call(c.fireFunc)
}

// nextFrame gives the flow the next frame when it has none. mu is held.
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

// buildWorkRequest makes a work of what the flow wants posted. mu is held.
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
	case out.last:
		pending = outstanding{frame: c.current, reg: c.currentReg, bytes: c.unposted}
		c.current, c.currentReg = nil, nil
	case w.Write:
		pending.bytes = len(w.Mem)
	}
	c.unposted -= pending.bytes
	l.outstanding[l.posted%uint64(l.depth)] = pending
	l.batch = append(l.batch, w)
}

// skipFrame ends the frame that its receiver does not want. mu is held.
func (c *conn) skipFrame() {
	c.unsent.sub(c.unposted)
	c.finished.Push(c.current)
	c.currentReg.release()
	if c.current.Parts != nil {
		c.reuse(c.body)
	}
	c.current, c.currentReg, c.body = nil, nil, nil
}

// maxStaging is the most copies of bodies that a Conn keeps for later ones, so that
// frames in parts allocate nothing, and their memory stays registered.
const maxStaging = 4

// bodyOf returns the body of f as one piece. A work request has one piece of memory,
// so that a body in parts is copied. mu is held.
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

// reuse keeps a copy's memory for the next one. mu is held.
func (c *conn) reuse(b []byte) {
	if cap(b) > 0 && len(c.staging) < maxStaging {
		c.staging = append(c.staging, b)
	}
}

// A Token names the memory of one place of the Conn that exposed it.
//
//	bytes 0..3   the place, uint32, little-endian
//	bytes 4..7   "RDMA"
//	bytes 8..15  the Conn's salt
//	bytes 16..31 zero
const tokenMark = "RDMA"

func (c *conn) token(handle uint32) (t transport.Token) {
	binary.LittleEndian.PutUint32(t[:], handle)
	copy(t[4:], tokenMark)
	binary.LittleEndian.PutUint64(t[8:], c.salt)
	return t
}

var errForeignToken = errors.New("got a token that the peer of this Conn has not made")

// handleIn is the place that a Token of the peer's names.
func handleIn(t transport.Token, salt uint64) (uint32, error) {
	handle := binary.LittleEndian.Uint32(t[:])
	if string(t[4:8]) != tokenMark || binary.LittleEndian.Uint64(t[8:]) != salt || handle&more != 0 {
		return 0, errForeignToken
	}
	return handle, nil
}
