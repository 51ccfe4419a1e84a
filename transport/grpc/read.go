package grpc

import (
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/mem"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// An inbox holds messages between readLoop and Progress. The field room is the maximum number of
// bytes. When the inbox is full, readLoop stops reading, and HTTP/2's flow control stops the peer.
//
//	over  gone  meaning
//	no    no    the stream is open
//	yes   no    the stream has ended; earlier messages are still delivered
//	yes   yes   Close was called: nothing is delivered any more
type inbox struct {
	due atomic.Int32 // number of messages, plus one after the end; written under mu

	mu    sync.Mutex // guards the rest
	cond  sync.Cond  // signals readLoop when there is room, and awaitReady
	msgs  []mem.BufferSlice
	head  int // index of the oldest message
	bytes int // total size of the messages, plus messageCost for each
	room  int
	ready func() // the armed callback
	fires int    // goroutines that run a callback
	over  bool   // the stream has ended; no message follows
	gone  bool   // Close was called; Progress delivers nothing
}

// empty reports whether Progress would find neither a message nor the end of the stream.
func (b *inbox) empty() bool { return b.due.Load() == 0 }

// put blocks until there is room, and adds a message. It returns false after Close. A message that
// is larger than the inbox is accepted if the inbox is empty. Each message counts as its size plus
// messageCost, so that the number of tiny messages is bounded too. An armed callback runs on
// readLoop's goroutine, inside put, which saves a switch of goroutines.
//
// So put bounds the memory of a Conn: while readLoop blocks in put, gRPC's receive window fills,
// and then the peer's sends wait.
func (b *inbox) put(m mem.BufferSlice) bool {
	b.mu.Lock()
	for b.bytes >= b.room && !b.gone {
		b.cond.Wait()
	}
	if b.gone {
		b.mu.Unlock()
		return false
	}
	// The messages move to the front, so that the slice need not grow.
	if b.head > 0 && len(b.msgs) == cap(b.msgs) {
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

// first returns the oldest message without removing it. If the result over is true, there is no
// message, and no message will come.
func (b *inbox) first() (m mem.BufferSlice, over bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gone || b.head == len(b.msgs) {
		return nil, b.gone || b.over
	}
	return b.msgs[b.head], false
}

// advance replaces the oldest message by its undelivered part. If that part is empty, advance
// removes the message. The argument count is the number of bytes that have been delivered.
func (b *inbox) advance(rest mem.BufferSlice, count int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bytes -= count
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

// end marks the end of the stream and calls the armed callback.
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

// shut ends delivery. Close calls it.
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

// arm stores ready for the next event, or runs it if Progress would find something now.
func (b *inbox) arm(ready func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ready = ready
	if b.due.Load() > 0 {
		b.fire()
	}
}

// fire calls the armed callback on a goroutine of its own, because the caller may hold locks that
// the callback needs. mu is held.
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

// awaitReady waits until no callback runs on a goroutine that fire has started.
func (b *inbox) awaitReady() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.fires > 0 {
		b.cond.Wait()
	}
}

// disarm returns the armed callback and clears it. mu is held.
//
// A callback runs at most once per Arm, because only the caller of disarm runs it.
func (b *inbox) disarm() func() {
	ready := b.ready
	b.ready = nil
	return ready
}

// deliver moves messages from the inbox to the Sink, until one frame is complete or nothing is
// left.
//
// The end of the stream counts as a message in the inbox. So empty returns false after the end. An
// armed Conn then runs its callback, and Progress returns the error.
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

// unpack feeds a message to the decoder up to the end of one frame, and releases the pieces that
// are completely decoded.
//
// A frame may span messages, and a message may contain many frames. The field used of the Conn is
// the position in the first piece at which the next call continues.
func (c *conn) unpack(m mem.BufferSlice, in transport.Sink) (whole bool, err *fault.Error) {
	count := 0
	for len(m) > 0 && !whole && err == nil {
		b := m[0].ReadOnlyData()[c.used:]
		var n int
		n, whole, err = c.decoder.feed(b, in)
		count += n
		c.used += n
		if n == len(b) {
			m[0].Free()
			m, c.used = m[1:], 0
		}
	}
	if !whole && err == nil {
		c.decoder.report(in)
	}
	c.received.Store(c.decoder.total)
	c.acked.Store(c.decoder.ack)
	c.in.advance(m, count)
	return whole, err
}

// abort ends a Conn whose peer violates the protocol, or whose Sink violates its contract.
func (c *conn) abort(err *fault.Error) {
	c.fail(err)
	c.in.shut()
	c.link.end()
}

// readLoop receives messages from gRPC until the stream ends. It loses no complete message, because
// the end of the stream follows all messages in the inbox. After Close, the accepting side returns,
// which ends the stream. The dialling side drops messages until the peer has ended the stream.
//
// readLoop may block in put with one message. shut wakes it, and readLoop drops the message.
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
