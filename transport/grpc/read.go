package grpc

import (
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/mem"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// An inbox holds messages between readLoop and Progress, up to room bytes; then
// readLoop stops reading, and flow control stops the peer.
type inbox struct {
	due atomic.Int32 // messages, plus one at the end; written under mu

	mu    sync.Mutex // guards the rest
	cond  sync.Cond  // rung for readLoop when there is room, and for rest
	msgs  []mem.BufferSlice
	head  int // of msgs, the first that has not been taken
	bytes int // of all messages, and messageCost for each
	room  int
	ready func() // armed
	fires int    // goroutines that run a ready
	over  bool   // nothing more will be put in
	gone  bool   // nothing more will be taken out
}

// empty reports that Progress would find nothing, not even the end.
func (b *inbox) empty() bool { return b.due.Load() == 0 }

// put adds a message when there is room, and waits for that; false: nobody will
// take it. A message larger than room fits when there is none other. Each counts
// for some bytes more than it has, so that tiny ones are bounded too. A ready runs
// here, on readLoop's goroutine: that is one switch of goroutines less.
func (b *inbox) put(m mem.BufferSlice) bool {
	b.mu.Lock()
	for b.bytes >= b.room && !b.gone {
		b.cond.Wait()
	}
	if b.gone {
		b.mu.Unlock()
		return false
	}
	if b.head > 0 && len(b.msgs) == cap(b.msgs) { // move up rather than grow
		n := copy(b.msgs, b.msgs[b.head:])
		clear(b.msgs[n:])
		b.head, b.msgs = 0, b.msgs[:n]
	}
	b.msgs = append(b.msgs, m)
	b.bytes += m.Len() + messageCost
	b.due.Add(1)
	ready := b.disarm()
	b.mu.Unlock()
	if ready != nil {
		ready()
	}
	return true
}

// first is the oldest message, which stays; over: there is none, and none comes.
func (b *inbox) first() (m mem.BufferSlice, over bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gone || b.head == len(b.msgs) {
		return nil, b.gone || b.over
	}
	return b.msgs[b.head], false
}

// advance replaces the oldest message by what is left of it; nothing drops it.
// taken is how many bytes of it are done with.
func (b *inbox) advance(rest mem.BufferSlice, taken int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bytes -= taken
	b.msgs[b.head] = rest
	if len(rest) > 0 {
		return
	}
	b.bytes -= messageCost
	b.msgs[b.head] = nil
	b.head++
	if b.head == len(b.msgs) {
		b.head, b.msgs = 0, b.msgs[:0]
	}
	b.due.Add(-1)
	b.cond.Broadcast()
}

// end says that nothing more comes; it wakes who is armed.
func (b *inbox) end() {
	b.mu.Lock()
	if !b.over {
		b.over = true
		b.due.Add(1)
	}
	ready := b.disarm()
	b.mu.Unlock()
	if ready != nil {
		ready()
	}
}

// shut says that nothing more will be taken: Close.
func (b *inbox) shut() {
	b.mu.Lock()
	if !b.over {
		b.over = true
		b.due.Add(1)
	}
	b.gone = true
	b.cond.Broadcast()
	b.fire()
	b.mu.Unlock()
}

// arm keeps ready for the next event, or runs it when there has been one.
func (b *inbox) arm(ready func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ready = ready
	if b.due.Load() > 0 {
		b.fire()
	}
}

// fire runs ready on a goroutine of its own, since whoever is here may hold locks
// that ready wants. mu is held.
func (b *inbox) fire() {
	ready := b.disarm()
	if ready == nil {
		return
	}
	b.fires++
	go func() {
		ready()
		b.mu.Lock()
		defer b.mu.Unlock()
		b.fires--
		b.cond.Broadcast()
	}()
}

// awaitReady waits until no ready runs on a goroutine of its own.
func (b *inbox) awaitReady() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.fires > 0 {
		b.cond.Wait()
	}
}

// disarm disarms. mu is held.
func (b *inbox) disarm() func() {
	ready := b.ready
	b.ready = nil
	return ready
}

// deliver moves messages from the inbox to where the Sink wants them, until one
// frame is complete or nothing is left.
func (c *conn) deliver(in transport.Sink) (moved bool, err error) {
	for {
		m, over := c.in.first()
		if over && !moved {
			return false, c.first()
		}
		if m == nil {
			return moved, nil
		}
		moved = true
		whole, err := c.unpack(m, in)
		if err != nil {
			c.abort(err)
			return true, c.first()
		}
		if whole {
			return true, nil
		}
	}
}

// unpack feeds the decoder with a message up to the end of one frame, and
// releases what it has taken.
func (c *conn) unpack(m mem.BufferSlice, in transport.Sink) (whole bool, err *fault.Error) {
	taken := 0
	for len(m) > 0 && !whole && err == nil {
		b := m[0].ReadOnlyData()[c.used:]
		var n int
		n, whole, err = c.decoder.feed(b, in)
		taken += n
		c.used += n
		if n == len(b) {
			m[0].Free()
			m, c.used = m[1:], 0
		}
	}
	if !whole && err == nil {
		c.decoder.report(in)
	}
	c.in.advance(m, taken)
	return whole, err
}

// abort ends a Conn whose peer does not keep to the rules, or whose Sink does not.
func (c *conn) abort(err *fault.Error) {
	c.fail(err)
	c.in.shut()
	c.link.end()
}

// readLoop takes messages from gRPC until the stream ends. Nothing that arrived
// whole is lost: the inbox ends behind it. After Close, the accepting side leaves,
// which ends the stream; the dialling side drops what comes until the peer has
// ended it.
func (c *conn) readLoop() {
	defer close(c.readEnd)
	var m incoming
	for {
		err := c.stream.RecvMsg(&m)
		if err != nil {
			c.fail(streamFailure(err))
			break
		}
		if !c.in.put(m.bufs) {
			m.bufs.Free()
			if c.hangUp != nil {
				break
			}
		}
		m.bufs = nil
	}
	c.in.end()
}
