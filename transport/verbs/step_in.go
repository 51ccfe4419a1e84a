package verbs

import (
	"errors"
	"fmt"

	"github.com/tutti-go/tutti/transport"
)

// came is what a message of the peer's means.
func (f *flow) came(p packet) (output, error) {
	f.credits += int(p.credit)
	if p.credit > uint32(maxDepth) || f.credits > maxDepth {
		return output{}, fmt.Errorf("%v gives credit for %d messages, and %d in all", p.kind, p.credit, f.credits)
	}
	if err := f.cleared(p); err != nil {
		return output{}, err
	}
	switch {
	case p.kind == tensorWrite:
		return f.whole(p)
	case p.kind == bufferRequest && p.flag == flagAgain:
		return output{}, f.renew(p)
	case p.kind == bufferRequest:
		if err := f.between(p.kind); err != nil {
			return output{}, err
		}
		if p.size == 0 || p.size > maxBody {
			return output{}, fmt.Errorf("%v for a body of %d bytes", p.kind, p.size)
		}
		f.awaiting = p.size
		return output{do: ask, packet: p}, nil
	case p.kind == bufferResponse:
		return f.answered(p)
	case p.kind == tensorRequest || p.kind == bufferIdle:
		return output{}, f.told(p)
	}
	return output{}, nil // ACK: its credit was all it had
}

// cleared notes what is free again of the peer's strip.
func (f *flow) cleared(p packet) error {
	s := &f.strip
	if s.tail += uint64(p.freed); s.tail > s.head {
		return fmt.Errorf("%v frees %d bytes that are not in use", p.kind, s.tail-s.head)
	}
	return nil
}

// whole is a frame that is here: in the message, or in our strip, at the one place
// where both ends know that the next one lies.
func (f *flow) whole(p packet) (output, error) {
	if err := f.between(p.kind); err != nil || p.flag != flagLanded {
		return output{do: small, packet: p}, err
	}
	s := &f.runway
	if !s.takes(p.size) {
		return output{}, fmt.Errorf("%v of %d bytes on a strip of %d", p.kind, p.size, s.size)
	}
	off, used := s.next(p.size)
	if p.addr != off {
		return output{}, fmt.Errorf("%v at %d on the strip, want %d", p.kind, p.addr, off)
	}
	s.head += used
	f.taking = used
	return output{do: small, packet: p, off: off}, nil
}

// renew shows memory again that the peer has written full. What is idle by now needs
// no answer: the peer hears that it is.
func (f *flow) renew(p packet) error {
	slot := slotOf(p.place)
	switch {
	case p.place&more != 0 || slot >= len(f.mine) || newer(p.place, f.mine[slot].place):
		return fmt.Errorf("%v for the place %#x, which there is none of", p.kind, p.place)
	case f.mine[slot].place != p.place || !f.mine[slot].open:
		return nil
	case f.mine[slot].placed || f.mine[slot].kept || f.mine[slot].got > 0 || len(f.notes)-f.noted >= maxNotes:
		return fmt.Errorf("%v for the place %#x out of turn", p.kind, p.place)
	}
	f.mine[slot].again, f.mine[slot].total = true, 0
	f.note(packet{kind: bufferResponse, flag: flagAgain, place: p.place})
	return nil
}

// between refuses a frame that comes inside another one.
func (f *flow) between(k kind) error {
	if f.awaiting > 0 || f.arriving >= 0 {
		return fmt.Errorf("%v while a body is arriving", k)
	}
	return nil
}

// answered takes the place for the frame that was asked about.
func (f *flow) answered(p packet) (output, error) {
	o := &f.out
	switch {
	case p.flag == flagAgain && o.phase == renewing && p.place == o.frame.place:
		to := &f.theirs[slotOf(p.place)]
		to.left = to.size
		o.phase = fresh
		return output{}, nil
	case o.phase != asked || p.flag == flagAgain:
		return output{}, fmt.Errorf("%v that nobody asked for", p.kind)
	case p.flag == flagNone:
		o.phase = resting
		return output{do: skip}, nil
	case p.size != o.frame.size:
		return output{}, fmt.Errorf("%v gives %d bytes for a body of %d", p.kind, p.size, o.frame.size)
	}
	o.phase = writing
	o.to = remote{place: p.place, known: true, addr: p.addr, size: p.size, rkey: p.rkey}
	return output{}, nil
}

// told notes what the peer says of its exposed memory.
func (f *flow) told(p packet) error {
	slot := slotOf(p.place)
	if p.flag == flagLanded {
		if f.strip.size != 0 || p.size == 0 || p.size > maxStrip {
			return fmt.Errorf("%v for a strip of %d bytes, after one of %d", p.kind, p.size, f.strip.size)
		}
		f.strip = strip{addr: p.addr, size: p.size, rkey: p.rkey}
		return nil
	}
	if p.place&more != 0 {
		return fmt.Errorf("%v with the place %#x", p.kind, p.place)
	}
	if p.flag == flagKept && p.id != transport.NoNotify {
		return fmt.Errorf("%v of memory that is kept with the id %d, by which its owner would hear of each write", p.kind, p.id)
	}
	if p.kind == bufferIdle {
		if slot >= len(f.theirs) || !f.theirs[slot].known || f.theirs[slot].place != p.place || f.theirs[slot].closed {
			return fmt.Errorf("%v for the place %#x, which is not in use", p.kind, p.place)
		}
		f.theirs[slot].closed = true
		return nil
	}
	for slot >= len(f.theirs) { // at most maxPlaces
		f.theirs = append(f.theirs, remote{})
	}
	if old := &f.theirs[slot]; old.known && !old.closed {
		return fmt.Errorf("%v for the place %#x, which is in use", p.kind, p.place)
	}
	f.theirs[slot] = remote{place: p.place, known: true, addr: p.addr, size: p.size, left: p.size, rkey: p.rkey, kept: p.flag == flagKept}
	return nil
}

// open takes a slot for memory of ours.
func (f *flow) open(size uint64, id uint32, holdsOne bool) (slot int, err error) {
	if n := len(f.free); n > 0 {
		slot, f.free = f.free[n-1], f.free[:n-1]
	} else if slot = len(f.mine); slot < maxPlaces {
		f.mine = append(f.mine, local{})
	} else {
		return 0, fmt.Errorf("%d pieces of memory are exposed already, the most that a Conn can have", maxPlaces)
	}
	generation := f.mine[slot].place>>12 + 1
	f.mine[slot] = local{place: placeOf(slot, generation), id: id, size: size, open: true, placed: holdsOne}
	return slot, nil
}

func (f *flow) close(slot int) {
	f.mine[slot].open = false
	f.free = append(f.free, slot)
}

// placed answers BUFFER_REQUEST with memory.
func (f *flow) placed(in input) (output, error) {
	slot, err := f.open(f.awaiting, 0, true)
	if err != nil {
		return output{}, err
	}
	f.arriving, f.awaiting = slot, 0
	l := &f.mine[slot]
	f.note(packet{kind: bufferResponse, place: l.place, size: l.size, addr: in.addr, rkey: in.rkey})
	return output{do: shown, place: l.place}, nil
}

// exposed tells the peer of memory.
func (f *flow) exposed(in input) (output, error) {
	if len(f.notes)-f.noted >= maxNotes {
		return output{}, fmt.Errorf("the peer has not taken %d messages about memory", maxNotes)
	}
	slot, err := f.open(in.size, in.id, false)
	if err != nil {
		return output{}, err
	}
	l := &f.mine[slot]
	p := packet{kind: tensorRequest, id: in.id, place: l.place, size: in.size, addr: in.addr, rkey: in.rkey}
	if l.kept = in.kept; l.kept {
		p.flag = flagKept
	}
	f.note(p)
	return output{do: shown, place: l.place}, nil
}

var (
	errStray = errors.New("a write into memory that is not shown")
	errHeard = errors.New("a write that is told of, into memory that is written in silence")
)

// wrote counts n bytes that have come into a place of ours.
func (f *flow) wrote(imm uint32, n uint64) (output, error) {
	slot, goesOn := slotOf(imm), imm&more != 0
	if slot >= len(f.mine) || !f.mine[slot].open || f.mine[slot].place != imm&^more {
		return output{}, errStray
	}
	l := &f.mine[slot]
	if l.kept {
		return output{}, errHeard
	}
	if n > l.size-l.total {
		return output{}, fmt.Errorf("%d bytes more than the %d that were announced", n-(l.size-l.total), l.size)
	}
	l.got += n
	l.total += n
	switch {
	case l.placed && slot != f.arriving || !l.placed && (f.awaiting > 0 || f.arriving >= 0):
		return output{}, fmt.Errorf("a write to place %#x inside another frame", imm)
	case l.placed && (l.got == l.size) == goesOn:
		return output{}, fmt.Errorf("a body of %d bytes that ends after %d", l.size, l.got)
	case l.placed:
		out := output{do: part, place: l.place, size: l.got}
		if !goesOn {
			f.arriving = -1
			f.close(slot)
		}
		return out, nil
	case goesOn:
		return output{}, nil
	}
	out := output{do: direct, place: l.place, id: l.id, size: l.got}
	l.got = 0
	return out, nil
}
