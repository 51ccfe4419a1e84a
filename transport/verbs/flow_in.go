package verbs

import (
	"errors"
	"fmt"

	"github.com/tutti-go/tutti/transport"
)

// handleMessage applies a message of the peer. All messages may grant credits and free bytes of
// the ring; the rest depends on the kind.
func (f *flow) handleMessage(p packet) (output, error) {
	// No peer can grant more than its receives. The check keeps a broken peer from overflowing
	// the count.
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
	return output{}, nil // ACK: it has nothing but credits
}

// handleFreed adds to the free bytes of the peer's ring.
func (f *flow) handleFreed(p packet) error {
	s := &f.sendRing
	if s.tail += uint64(p.freed); s.tail > s.head {
		return fmt.Errorf("%v: got %d freed bytes more than the ring has in use", p.kind, s.tail-s.head)
	}
	return nil
}

// handleFrame applies a frame that has arrived, in the message or in this end's ring. In the
// ring it must lie where both ends compute that the next body lies.
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

// handleRenew renews exposed memory that the peer has written to its size. Memory that is
// closed by now needs no answer: a BUFFER_IDLE is on its way.
func (f *flow) handleRenew(p packet) error {
	slot := slotOf(p.handle)
	switch {
	case p.handle&more != 0 || slot >= len(f.locals) || newer(p.handle, f.locals[slot].handle):
		return fmt.Errorf("%v: unknown handle %#x", p.kind, p.handle)
	// The request and this end's BUFFER_IDLE have crossed.
	case f.locals[slot].handle != p.handle || !f.locals[slot].open:
		return nil
	// Such memory is never renewed, or not while a frame is being written to it. The last
	// condition bounds the answers that a peer can provoke.
	case f.locals[slot].holdsOne || f.locals[slot].noNotify || f.locals[slot].frameBytes > 0 || len(f.controls)-f.controlsSent >= maxControls:
		return fmt.Errorf("%v: handle %#x cannot be renewed now", p.kind, p.handle)
	}
	f.locals[slot].renewed, f.locals[slot].totalBytes = true, 0
	f.queueControl(packet{kind: bufferResponse, flag: flagRenew, handle: p.handle})
	return nil
}

// checkNoBody returns an error if the body of another frame is arriving, or has been asked
// about.
func (f *flow) checkNoBody(k kind) error {
	if f.requestedSize > 0 || f.arrivingSlot >= 0 {
		return fmt.Errorf("%v: got it within the body of another frame", k)
	}
	return nil
}

// handleResponse applies the answer to this end's BUFFER_REQUEST.
func (f *flow) handleResponse(p packet) (output, error) {
	o := &f.out
	switch {
	case p.flag == flagRenew && o.phase == renewing && p.handle == o.frame.handle:
		// The frame begins again, and now fits.
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

// handleExposure applies what the peer announces about its memory: its ring, an exposure, or
// the end of one.
func (f *flow) handleExposure(p packet) error {
	slot := slotOf(p.handle)
	if p.flag == flagInRing {
		if f.sendRing.size != 0 || p.size == 0 || p.size > maxRing {
			return fmt.Errorf("%v: got a ring of %d bytes after one of %d, want one, of 1 to %d", p.kind, p.size, f.sendRing.size, maxRing)
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
	for slot >= len(f.remotes) { // slotOf is below maxSlots
		f.remotes = append(f.remotes, remoteMemory{})
	}
	if old := &f.remotes[slot]; old.announced && !old.closed {
		return fmt.Errorf("%v: the slot of handle %#x is in use", p.kind, p.handle)
	}
	f.remotes[slot] = remoteMemory{handle: p.handle, announced: true, addr: p.addr, size: p.size, left: p.size, rkey: p.rkey, noNotify: p.flag == flagNoNotify}
	return nil
}

// openSlot assigns a slot, with a new generation, to memory of this end. At most maxSlots are
// open.
func (f *flow) openSlot(size uint64, id uint32, holdsOne bool) (slot int, err error) {
	if n := len(f.freeSlots); n > 0 {
		slot, f.freeSlots = f.freeSlots[n-1], f.freeSlots[:n-1]
	} else if slot = len(f.locals); slot < maxSlots {
		f.locals = append(f.locals, localMemory{})
	} else {
		return 0, fmt.Errorf("got one exposure more than the %d that a Conn may have; release some first", maxSlots)
	}
	// A new generation makes the handle of the slot's last use stale.
	generation := f.locals[slot].handle>>12 + 1
	f.locals[slot] = localMemory{handle: handleOf(slot, generation), id: id, size: size, open: true, holdsOne: holdsOne}
	return slot, nil
}

// closeSlot ends a slot. Its next use has another generation.
func (f *flow) closeSlot(slot int) {
	f.locals[slot].open = false
	f.freeSlots = append(f.freeSlots, slot)
}

// acceptBody answers BUFFER_REQUEST with memory.
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
	errNotified   = errors.New("got a write with notification into memory without")
)

// handleWrite counts n bytes that have arrived in memory of this end. imm is the immediate
// value: the handle, and whether more writes of the frame follow.
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
		return output{}, fmt.Errorf("got a write of %d bytes more than the memory of %d has left", n-(l.size-l.totalBytes), l.size)
	}
	l.frameBytes += n
	l.totalBytes += n
	switch {
	// Frames arrive one after the other, so a write belongs to the body that is arriving, or no
	// body is.
	case l.holdsOne && slot != f.arrivingSlot || !l.holdsOne && (f.requestedSize > 0 || f.arrivingSlot >= 0):
		return output{}, fmt.Errorf("got a write to handle %#x within another frame", imm)
	// The last write of a body, and no other, completes it.
	case l.holdsOne && (l.frameBytes == l.size) == goesOn:
		return output{}, fmt.Errorf("got %[2]d bytes of a body of %[1]d, and its end at another byte", l.size, l.frameBytes)
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
