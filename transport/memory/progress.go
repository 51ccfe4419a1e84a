package memory

import (
	"errors"
	"fmt"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// brokenFrame stands for the received bytes of a frame that will never be whole.
const brokenFrame = -1

// Progress implements transport.Conn. It receives at most one slice of one frame. A poll of an
// empty inbox costs two atomic operations and no lock.
func (c *conn) Progress(in transport.Sink, _ int) (transport.State, error) {
	if !c.reading.CompareAndSwap(false, true) {
		return transport.Busy, nil
	}
	defer c.reading.Store(false)
	if c.waiting.Load() == 0 {
		return transport.Idle, nil
	}
	it, err := c.pin()
	if err != nil || it.f == nil {
		return transport.Idle, err
	}
	if err := c.receive(&it, in); err != nil {
		c.got = brokenFrame
		c.end(err, func() error { return err })
	}
	c.unpin()
	return transport.Moved, nil
}

// pin pins the oldest frame and returns it. After a failure it fails the frames that this end has
// sent, and returns the error instead.
func (c *conn) pin() (item, error) {
	c.link.mu.Lock()
	if c.err != nil {
		stale, err := c.detachUnreceived(), c.err
		c.link.mu.Unlock()
		failAll(stale, err)
		return item{}, err
	}
	defer c.link.mu.Unlock()
	if c.inbox.Len() == 0 {
		return item{}, nil
	}
	c.pinned = true
	return *c.inbox.First(), nil
}

// unpin unpins the frame, and ends it if it is whole or the link has failed.
func (c *conn) unpin() {
	whole := c.begun && c.got == c.header.Size
	c.link.mu.Lock()
	c.pinned = false
	c.received++
	if !whole && c.err == nil {
		c.link.mu.Unlock()
		return
	}
	f, err := c.inbox.Pop().f, c.peer.err
	if whole {
		err = nil
	}
	c.begun, c.dst, c.target = false, nil, handle{}
	c.updateWaiting()
	c.link.mu.Unlock()
	f.Done(err)
}

// receive copies the next slice of the frame to its destination. No lock is held, so that the Sink
// may send.
func (c *conn) receive(it *item, in transport.Sink) error {
	if !c.begun {
		if err := c.begin(it, in); err != nil {
			return err
		}
	}
	n := min(maxSlice, it.size-c.got)
	switch {
	case c.target != (handle{}):
		if !c.exposures.write(c.target, it, c.got, n) {
			return errNotExposed(it.size)
		}
	case c.dst == nil:
		n = it.size // dropped: there is nothing to copy
	default:
		it.copyPart(c.dst[c.got:c.got+n], c.got)
	}
	c.got += n
	in.Arrived(c.header, c.got)
	return nil
}

// begin finds the destination of the frame's body. It copies the head, because the sender may
// get its frame back, by Close, before the frame is whole.
func (c *conn) begin(it *item, in transport.Sink) error {
	c.begun, c.got = true, 0
	if it.f.To != (transport.Token{}) {
		c.target = handleOf(it.f.To)
		id, ok := c.exposures.find(c.target, it.f.Offset, it.size)
		if !ok {
			return errNotExposed(it.size)
		}
		c.header = transport.Header{ID: id, Size: it.size}
		return nil
	}
	n := copy(c.head[:], it.f.Head)
	c.header = transport.Header{Head: c.head[:n], ID: it.f.ID, Size: it.size}
	c.dst = in.Buffer(c.header)
	if c.dst != nil && len(c.dst) < it.size {
		return failure(fault.Misuse, "progress",
			fmt.Errorf("got a buffer of %d bytes from the Sink, want %d for the body", len(c.dst), it.size))
	}
	return nil
}

// errNotExposed returns the error of a link after a frame into memory that is not exposed, or is
// too small for it. Hardware breaks the connection then, and so does this package.
func errNotExposed(size int) error {
	return failure(fault.Misuse, fmt.Sprintf("a frame of %d bytes into exposed memory", size),
		errors.New("got a token of memory that is not exposed, or not that large"))
}
