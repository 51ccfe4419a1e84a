package verbs

import (
	"errors"
	"fmt"

	"github.com/tutti-go/tutti/transport"
)

// handleMessage applies a message of the peer. Every message may grant credits and free bytes of
// the ring. The rest of its effect depends on the kind.
func (f *flow) handleMessage(p packet) (output, error) {
	// A peer never grants more credits than it has receives. The check keeps a broken peer from
	// overflowing the count.
	f.credits += int(p.credit)
	if p.credit > uint32(maxDepth) || f.credits > maxDepth {
		return output{}, fmt.Errorf("%v: got %d credits, %d in all, want at most %d", p.kind, p.credit, f.credits, maxDepth)
	}
	if err := f.handleFreed(p); err != nil {
		return output{}, err
	}
	switch {
	case p.kind == tensorWrite:
		return f.handleFrame(p)
	case p.kind == bufferRequest && p.flag == flagRenew:
		return output{}, f.handleRenew(p)
	case p.kind == bufferRequest:
		if err := f.checkNoBody(p.kind); err != nil {
			return output{}, err
		}
		if p.size == 0 || p.size > maxBody {
			return output{}, fmt.Errorf("%v: got a body of %d bytes, want 1 to %d", p.kind, p.size, maxBody)
		}
		f.requestedSize = p.size
		return output{op: outNeedBuffer, packet: p}, nil
	case p.kind == bufferResponse:
		return f.handleResponse(p)
	case p.kind == tensorRequest || p.kind == bufferIdle:
		return output{}, f.handleExposure(p)
	}
	return output{}, nil // ACK: it only grants credits
}

// handleFreed adds the freed bytes that p reports to the free bytes of the peer's ring.
func (f *flow) handleFreed(p packet) error {
	s := &f.sendRing
	if s.tail += uint64(p.freed); s.tail > s.head {
		return fmt.Errorf("%v: got %d freed bytes more than the ring has in use", p.kind, s.tail-s.head)
	}
	return nil
}

// handleFrame applies a frame whose body is in the message or in this end's ring. A body in the
// ring must lie at the offset that this end computes for the next body.
func (f *flow) handleFrame(p packet) (output, error) {
	if err := f.checkNoBody(p.kind); err != nil || p.flag != flagInRing {
		return output{op: outFrame, packet: p}, err
	}
	s := &f.recvRing
	if !s.fits(p.size) {
		return output{}, fmt.Errorf("%v: got a body of %d bytes in the ring, want 1 to %d", p.kind, p.size, s.size/4)
	}
	off, used := s.next(p.size)
	if p.addr != off {
		return output{}, fmt.Errorf("%v: got offset %d in the ring, want %d", p.kind, p.addr, off)
	}
	s.head += used
	f.ringUsed = used
	return output{op: outFrame, packet: p, off: off}, nil
}

// handleRenew renews exposed memory that the peer has filled. If the memory has been closed
// meanwhile, it sends no answer, because a BUFFER_IDLE is on its way.
func (f *flow) handleRenew(p packet) error {
	slot := slotOf(p.handle)
	switch {
	case p.handle&more != 0 || slot >= len(f.locals) || newer(p.handle, f.locals[slot].handle):
		return fmt.Errorf("%v: unknown handle %#x", p.kind, p.handle)
	// The request and this end's BUFFER_IDLE have crossed.
	case f.locals[slot].handle != p.handle || !f.locals[slot].open:
		return nil
	// The first two kinds of memory are never renewed. No memory is renewed while a frame is
	// being written to it. The last condition bounds the number of answers that a peer can
	// provoke.
	case f.locals[slot].holdsOne || f.locals[slot].noNotify || f.locals[slot].frameBytes > 0 || len(f.controls)-f.controlsSent >= maxControls:
		return fmt.Errorf("%v: got handle %#x, want memory for many writes with notification, no write in progress, and fewer unread answers", p.kind, p.handle)
	}
	f.locals[slot].renewed, f.locals[slot].totalBytes = true, 0
	f.queueControl(packet{kind: bufferResponse, flag: flagRenew, handle: p.handle})
	return nil
}

// checkNoBody returns an error if the body of another frame is arriving, or if its
// BUFFER_REQUEST has not been answered yet.
func (f *flow) checkNoBody(k kind) error {
	if f.requestedSize > 0 || f.arrivingSlot >= 0 {
		return fmt.Errorf("%v: got the message within the body of another frame", k)
	}
	return nil
}

// handleResponse applies the answer to this end's BUFFER_REQUEST.
func (f *flow) handleResponse(p packet) (output, error) {
	o := &f.out
	switch {
	case p.flag == flagRenew && o.phase == renewing && p.handle == o.frame.handle:
		// The frame starts again. It now fits the memory.
		to := &f.remotes[slotOf(p.handle)]
		to.left = to.size
		o.phase = queued
		return output{}, nil
	case o.phase != requested || p.flag == flagRenew:
		return output{}, fmt.Errorf("%v: no request is outstanding", p.kind)
	case p.flag == flagDeclined:
		o.phase = idle
		return output{op: outSkip}, nil
	case p.size != o.frame.size:
		return output{}, fmt.Errorf("%v: got memory of %d bytes, want %d", p.kind, p.size, o.frame.size)
	}
	o.phase = writing
	o.to = remoteMemory{handle: p.handle, announced: true, addr: p.addr, size: p.size, rkey: p.rkey}
	return output{}, nil
}

// handleExposure applies an announcement of the peer about its memory: its ring, an exposure, or
// the end of an exposure.
func (f *flow) handleExposure(p packet) error {
	slot := slotOf(p.handle)
	if p.flag == flagInRing {
		if f.sendRing.size != 0 || p.size == 0 || p.size > maxRing {
			return fmt.Errorf("%v: got a ring of %d bytes after a ring of %d, want a single ring of 1 to %d bytes", p.kind, p.size, f.sendRing.size, maxRing)
		}
		f.sendRing = eagerRing{addr: p.addr, size: p.size, rkey: p.rkey}
		return nil
	}
	if p.handle&more != 0 {
		return fmt.Errorf("%v: got handle %#x, want 31 bits", p.kind, p.handle)
	}
	if p.flag == flagNoNotify && p.id != transport.NoNotify {
		return fmt.Errorf("%v without notification: got ID %d, want %d", p.kind, p.id, uint32(transport.NoNotify))
	}
	if p.kind == bufferIdle {
		if slot >= len(f.remotes) || !f.remotes[slot].announced || f.remotes[slot].handle != p.handle || f.remotes[slot].closed {
			return fmt.Errorf("%v: handle %#x is not in use", p.kind, p.handle)
		}
		f.remotes[slot].closed = true
		return nil
	}
	// The table grows to the highest slot that the peer has used.
	for slot >= len(f.remotes) { // slotOf returns a number below maxSlots, so the table is bounded
		f.remotes = append(f.remotes, remoteMemory{})
	}
	if old := &f.remotes[slot]; old.announced && !old.closed {
		return fmt.Errorf("%v: the slot of handle %#x is in use", p.kind, p.handle)
	}
	f.remotes[slot] = remoteMemory{handle: p.handle, announced: true, addr: p.addr, size: p.size, left: p.size, rkey: p.rkey, noNotify: p.flag == flagNoNotify}
	return nil
}

// openSlot assigns a slot with a new generation to memory of this end. It returns an error if
// maxSlots slots are open.
func (f *flow) openSlot(size uint64, id uint32, holdsOne bool) (slot int, err error) {
	if n := len(f.freeSlots); n > 0 {
		slot, f.freeSlots = f.freeSlots[n-1], f.freeSlots[:n-1]
	} else if slot = len(f.locals); slot < maxSlots {
		f.locals = append(f.locals, localMemory{})
	} else {
		return 0, fmt.Errorf("exposures: got %d, want at most %d per Conn; release one first", maxSlots+1, maxSlots)
	}
	// A new generation makes the handle of the slot's last use stale.
	generation := f.locals[slot].handle>>12 + 1
	f.locals[slot] = localMemory{handle: handleOf(slot, generation), id: id, size: size, open: true, holdsOne: holdsOne}
	return slot, nil
}

// closeSlot closes a slot and makes it available for another use. The next use has another
// generation.
func (f *flow) closeSlot(slot int) {
	f.locals[slot].open = false
	f.freeSlots = append(f.freeSlots, slot)
}

// acceptBody answers a BUFFER_REQUEST with the memory in which the body is to be written.
func (f *flow) acceptBody(in input) (output, error) {
	slot, err := f.openSlot(f.requestedSize, 0, true)
	if err != nil {
		return output{}, err
	}
	f.arrivingSlot, f.requestedSize = slot, 0
	l := &f.locals[slot]
	f.queueControl(packet{kind: bufferResponse, handle: l.handle, size: l.size, addr: in.addr, rkey: in.rkey})
	return output{op: outExposed, handle: l.handle}, nil
}

// expose announces memory to the peer.
func (f *flow) expose(in input) (output, error) {
	if len(f.controls)-f.controlsSent >= maxControls {
		return output{}, fmt.Errorf("got %d messages about memory that the peer has not read; release or expose less often", maxControls)
	}
	slot, err := f.openSlot(in.size, in.id, false)
	if err != nil {
		return output{}, err
	}
	l := &f.locals[slot]
	p := packet{kind: tensorRequest, id: in.id, handle: l.handle, size: in.size, addr: in.addr, rkey: in.rkey}
	if l.noNotify = in.noNotify; l.noNotify {
		p.flag = flagNoNotify
	}
	f.queueControl(p)
	return output{op: outExposed, handle: l.handle}, nil
}

var (
	errNotExposed = errors.New("got a write into memory that is not exposed")
	errNotified   = errors.New("got a write with notification into memory that was exposed without notification")
)

// handleWrite counts n bytes that a write has put into memory of this end. The argument imm is the
// immediate value of the write. It contains the handle, and a bit that says whether more writes of
// the frame follow.
func (f *flow) handleWrite(imm uint32, n uint64) (output, error) {
	slot, goesOn := slotOf(imm), imm&more != 0
	if slot >= len(f.locals) || !f.locals[slot].open || f.locals[slot].handle != imm&^more {
		return output{}, errNotExposed
	}
	l := &f.locals[slot]
	if l.noNotify {
		return output{}, errNotified
	}
	if n > l.size-l.totalBytes {
		return output{}, fmt.Errorf("got writes of %d bytes in all, want at most the memory's %d", l.totalBytes+n, l.size)
	}
	l.frameBytes += n
	l.totalBytes += n
	switch {
	// Frames arrive one after the other. So a write to a requested buffer must belong to the body
	// that is arriving. A write to exposed memory is valid only while no requested body is
	// arriving.
	case l.holdsOne && slot != f.arrivingSlot || !l.holdsOne && (f.requestedSize > 0 || f.arrivingSlot >= 0):
		return output{}, fmt.Errorf("got a write to handle %#x within another frame", imm)
	// A body must be complete exactly when its last write has arrived.
	case l.holdsOne && (l.frameBytes == l.size) == goesOn:
		if goesOn {
			return output{}, fmt.Errorf("body of %d bytes: got all bytes and a mark that more follow, want the mark of the last write", l.size)
		}
		return output{}, fmt.Errorf("body of %d bytes: got the mark of the last write after %d bytes, want all bytes first", l.size, l.frameBytes)
	case l.holdsOne:
		out := output{op: outBodyPart, handle: l.handle, size: l.frameBytes}
		if !goesOn {
			f.arrivingSlot = -1
			f.closeSlot(slot)
		}
		return out, nil
	case goesOn:
		return output{}, nil
	}
	out := output{op: outExposedFrame, handle: l.handle, id: l.id, size: l.frameBytes}
	l.frameBytes = 0
	return out, nil
}
