package verbs

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

func newSalt() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails since Go 1.24
	return binary.LittleEndian.Uint64(b[:])
}

// A guest is the accepting end. Until Admit it has no queue pair and no registered
// memory: a stranger costs what it costs on the set-up link.
type guest struct{ *conn }

// Admit lifts the set-up link's limits, and offers the peer a queue pair if it is to
// have one.
func (g guest) Admit() {
	if sg, ok := g.setup.(transport.Pending); ok {
		sg.Admit()
	}
	if g.owes(func() { g.admitted = true }) {
		g.offer()
	}
}

// owes notes something, and reports whether it was the last that an offer waited for.
func (c *conn) owes(note func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	note()
	return c.admitted && c.wanted
}

// RemoteAddr is the set-up link's; nil where that has none.
func (c *conn) RemoteAddr() net.Addr {
	if r, ok := c.setup.(interface{ RemoteAddr() net.Addr }); ok {
		return r.RemoteAddr()
	}
	return nil
}

// offer makes the accepting end's queue pair and tells the peer how to reach it.
func (c *conn) offer() {
	l, err := c.newLine()
	if err != nil {
		c.refuse(err)
		return
	}
	if !c.begin(l) {
		c.discard(l)
		return
	}
	c.setup.Send(c.hello(sayOffer))
}

// begin makes l the Conn's, unless it has failed or has one.
func (c *conn) begin(l *line) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || c.line != nil {
		return false
	}
	c.line, c.stage = l, agreeing
	return true
}

func (c *conn) discard(l *line) {
	l.close()
	if l.free() {
		c.home.leave()
	}
}

// hello says how this end's queue pair is reached.
func (c *conn) hello(say byte) *transport.Frame {
	body := make([]byte, helloLen)
	h := hello{endpoint: c.line.pair.local(), depth: uint32(c.line.depth), buffer: uint32(c.line.size), salt: c.salt}
	h.put(body)
	return setupFrame(say, body, ignore)
}

// refuse tells the peer that there will be no queue pair, and why, and fails.
func (c *conn) refuse(err error) {
	text := []byte(err.Error())
	c.setup.Send(setupFrame(sayRefuse, text[:min(len(text), maxRefusal)], func(error) { c.end(err, true) }))
}

// heard is what the peer says on the set-up link. An error means nonsense; what
// this end's device refuses ends the Conn here.
func (c *conn) heard(say byte, body []byte) error {
	switch agreed := c.has(agreeing); {
	case say == sayLiteral:
		c.relay.literal = true
	case say == sayWant && c.accepted && !c.wanted:
		if c.owes(func() { c.wanted = true }) {
			c.offer()
		}
	case say == sayRefuse:
		c.end(failure(fault.Refused, "connect", fmt.Errorf("the peer has no queue pair for this link: %q", body)), true)
	case say == sayOffer && !c.accepted && c.has(relaying), say == sayAnswer && c.accepted && agreed:
		theirs, err := parseHello(body)
		if err != nil {
			return err
		}
		if c.accepted {
			c.complete(theirs)
		} else {
			c.answer(theirs)
		}
	case say == sayReady && !c.accepted && agreed:
		c.leave(sayOver)
		c.arriveBy()
	case say == sayOver && c.accepted && !c.switched.Load() && !c.has(relaying) && !agreed:
		c.arriveBy()
	default:
		return fmt.Errorf("message %d out of turn", say)
	}
	return nil
}

// arriveBy has arrivals be taken from the queue pair: the peer has left the set-up
// link, which is only looked at when something comes there.
func (c *conn) arriveBy() {
	c.switched.Store(true)
	c.setupDue.Store(true)
}

func (c *conn) has(s stage) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stage == s
}

// answer is the dialling end's part: it is connected before the peer is, and so
// can receive when the peer begins to send.
func (c *conn) answer(theirs hello) {
	l, err := c.newLine()
	if err != nil {
		c.refuse(err)
		return
	}
	if err := l.pair.connect(theirs.endpoint); err != nil {
		c.discard(l)
		c.refuse(unconnected(c.home.device, err))
		return
	}
	if !c.begin(l) {
		c.discard(l)
		return
	}
	c.agree(theirs)
	c.setup.Send(c.hello(sayAnswer))
}

// complete is the accepting end's part.
func (c *conn) complete(theirs hello) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	err := c.line.pair.connect(theirs.endpoint)
	c.mu.Unlock()
	if err != nil {
		c.refuse(unconnected(c.home.device, err))
		return
	}
	c.agree(theirs)
	c.leave(sayReady)
}

// agree notes what the peer can take.
func (c *conn) agree(theirs hello) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.theirs = theirs
	c.flow.credits = int(theirs.depth)
	c.flow.payload = min(int(theirs.buffer), c.line.size) - packetLen
}

// leave queues the last frame for the set-up link. When it is Done, and so will
// arrive whatever happens, frames go over the queue pair.
func (c *conn) leave(say byte) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.stage, c.holding = leaving, true
	c.marker = setupFrame(say, nil, c.goLive)
	c.early.Push(c.marker)
	c.passOn()
}

// goLive sends what has waited.
func (c *conn) goLive(err error) {
	c.mu.Lock()
	if err == nil && c.err == nil {
		c.stage = live
	}
	c.pumpAndUnlock()
}

func unconnected(d device, err error) error {
	return failure(fault.LinkLost, "connect", fmt.Errorf("%s: %w; compare GID index, RoCE version and MTU of both ends", d.describe(), err))
}
