package memory

import (
	"errors"
	"fmt"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// brokenFrame stands for the received bytes of a frame that will never be whole.
const brokenFrame = -1

// Progress receives at most one slice of one frame. Looking at an empty inbox
// costs two atomic operations and no lock, so it may be polled.
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

// pin takes hold of the oldest frame. After a failure it fails what this end
// had sent, and returns the error instead.
func (c *conn) pin() (item, error) {
	c.link.mu.Lock()
	if c.err != nil {
		stale, err := c.takeUnreceived(), c.err
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

// unpin lets go of the frame, and ends it when it is whole or the link is not.
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

// receive moves the next slice of the frame to where it goes. No lock is held,
// so that the Sink may send.
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

// begin learns where the frame's body goes. The head is copied, because the
// sender may take its frame back, by Close, before the frame is whole.
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
			fmt.Errorf("the place returned has %d bytes for a body of %d", len(c.dst), it.size))
	}
	return nil
}

// errNotExposed is how a link ends whose frame names memory that is not shown,
// or too small for it: where hardware breaks the connection, so does this.
func errNotExposed(size int) error {
	return failure(fault.Misuse, fmt.Sprintf("a frame of %d bytes into exposed memory", size),
		errors.New("nothing of that size is exposed by its token"))
}
