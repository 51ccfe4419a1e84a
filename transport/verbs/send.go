package verbs

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
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
	before := c.postedWorks()
	err := c.pump()
	posted = c.postedWorks() != before
	done := c.finished
	c.finished = transport.Queue{}
	c.mu.Unlock()
	finish(&done, nil)
	if err != nil {
		c.end(err, false)
	}
	return posted
}

func (c *conn) postedWorks() uint64 {
	if c.line == nil {
		return 0
	}
	return c.line.posted
}

// pump posts as much as the queue pair has room and the peer has receives for, in
// one call to the device. mu is held.
func (c *conn) pump() error {
	l := c.line
	if c.stage != live || c.err != nil || l.err != nil {
		return nil
	}
	var fail error
	l.works = l.works[:0]
	for l.room() && fail == nil && !(c.flow.rests() && c.out.Empty()) {
		if fail = c.feed(); fail != nil {
			break
		}
		out, err := c.flow.step(input{do: pull})
		if err != nil {
			fail = failure(fault.Misuse, "send", err)
		}
		if out.do == nothing {
			break
		}
		c.prepare(&out)
	}
	if n := len(l.works); n > 0 {
		l.works[n-1].signaled = true
		c.post()
	}
	return fail
}

// post gives the works that were put together to the device. mu is held.
func (c *conn) post() {
	l := c.line
	if w := &l.works[len(l.works)-1]; w.signaled {
		l.signaled = w.id
	}
	if err := l.pair.send(l.works); err != nil {
		c.unposted(err)
	}
}

// unposted fails the queue pair that has refused works, and wakes who sleeps: nothing
// need be on its way that would. mu is held.
func (c *conn) unposted(err error) {
	for c.reap(1) > 0 { // the reason may lie there
	}
	c.line.fail(failure(fault.LinkLost, "post", fmt.Errorf("%s: %w", c.home.device.describe(), err)))
	c.home.caller.Call(c.fired)
}

// feed gives the flow the next frame when it has none. mu is held.
func (c *conn) feed() error {
	if c.flow.out.phase != resting || c.out.Empty() {
		return nil
	}
	f := c.out.Pop()
	c.current, c.left = f, sizeOf(f)
	fr := frame{head: len(f.Head), size: uint64(len(f.Body)), id: f.ID}
	if f.To != (transport.Token{}) {
		fr.direct, fr.at = true, uint64(f.Offset)
		var err error
		if fr.place, err = placeIn(f.To, c.theirs.salt); err != nil {
			return failure(fault.Misuse, "send", err)
		}
	}
	if fr.direct && fr.size > 0 || fr.size > uint64(c.flow.payload-fr.head) {
		lease, err := c.home.cache.take(f.Body)
		if err != nil {
			return err
		}
		c.lease = lease
	}
	_, err := c.flow.step(input{do: offered, frame: fr})
	return err
}

// prepare makes a work of what the flow wants posted. mu is held.
func (c *conn) prepare(out *output) {
	l := c.line
	l.posted++
	w := work{id: l.posted, signaled: l.isTurn()}
	if out.do == write || out.do == fill {
		w.write, w.silent, w.imm = true, out.do == fill, out.place
		w.raddr, w.rkey = out.remote.addr+out.at, out.remote.rkey
		if out.size > 0 {
			w.mem, w.lkey = c.current.Body[out.off:out.off+out.size], c.lease.region.lkey
		}
	} else {
		b := l.buffer(l.send, l.posted)
		out.packet.put(b)
		n := packetLen
		if out.packet.head > 0 {
			n += copy(b[n:], c.current.Head)
		}
		if out.packet.kind == tensorWrite && out.packet.flag != flagLanded {
			n += copy(b[n:], c.current.Body)
		}
		w.mem, w.lkey, w.inline = b[:n], l.send.lkey, n <= l.pair.inline()
	}
	var going flight
	switch {
	case out.last:
		going = flight{frame: c.current, lease: c.lease, bytes: c.left}
		c.current, c.lease = nil, nil
	case w.write:
		going.bytes = len(w.mem)
	}
	c.left -= going.bytes
	l.flights[l.posted%uint64(l.depth)] = going
	l.works = append(l.works, w)
}

// skipped ends the frame that its receiver does not want. mu is held.
func (c *conn) skipped() {
	c.unsent.take(c.left)
	c.finished.Push(c.current)
	c.lease.free()
	c.current, c.lease = nil, nil
}

// A Token names the memory of one place of the Conn that exposed it.
//
//	bytes 0..3   the place, uint32, little-endian
//	bytes 4..7   "RDMA"
//	bytes 8..15  the Conn's salt
//	bytes 16..31 zero
const tokenMark = "RDMA"

func (c *conn) token(place uint32) (t transport.Token) {
	binary.LittleEndian.PutUint32(t[:], place)
	copy(t[4:], tokenMark)
	binary.LittleEndian.PutUint64(t[8:], c.salt)
	return t
}

var errAlien = errors.New("the frame's token was not made by this Conn's peer")

// placeIn is the place that a Token of the peer's names.
func placeIn(t transport.Token, salt uint64) (uint32, error) {
	place := binary.LittleEndian.Uint32(t[:])
	if string(t[4:8]) != tokenMark || binary.LittleEndian.Uint64(t[8:]) != salt || place&more != 0 {
		return 0, errAlien
	}
	return place, nil
}
