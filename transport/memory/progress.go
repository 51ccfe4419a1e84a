package memory

import (
	"errors"
	"fmt"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// brokenFrame is the value of the field got for a frame that will never be whole. It differs from
// every Size.
const brokenFrame = -1

// Progress implements transport.Conn. It receives at most one slice of one frame. It has nothing to
// write, because Send has put the frames into the peer's inbox. A poll of an empty inbox costs
// three atomic operations and no lock. It does not spin, because ranks that are goroutines of one
// process make progress when the others yield.
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

// pin pins the oldest frame and returns it, or an empty item. After a failure it fails the frames
// that this end has sent, and returns the error. Frames that the peer has sent and this end has not
// received are lost with the failure. Their Done runs with the error.
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

// unpin unpins the frame. If it is whole, or the link has failed meanwhile, unpin removes it from
// the inbox and runs its Done; otherwise the next Progress continues with it. The Done of a whole
// frame gets no error, even on a failed link, because the receiver has the frame.
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

// receive copies the next slice of the frame to its destination, and calls Arrived. The receiver's
// role and the pin protect the frame. No lock is held, so the Sink may send, and may close this
// Conn.
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
		// The Sink drops the body, so nothing is copied, and the frame completes at once.
		n = it.size
	default:
		it.copyPart(c.dst[c.got:c.got+n], c.got)
	}
	c.got += n
	in.Arrived(c.header, c.got)
	return nil
}

// begin finds the destination of the frame's body: exposed memory, a buffer of the Sink, or none.
// It copies the head, because the Sink may read the head until the frame is whole, and the sender
// may get its frame back earlier, by Close.
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

// errNotExposed returns the error for a frame into memory that is not exposed, or is too small. The
// link fails with this error, as a connection of real hardware does.
func errNotExposed(size int) error {
	return failure(fault.Misuse, fmt.Sprintf("a frame of %d bytes into exposed memory", size),
		errors.New("got a token of memory that is not exposed or too small"))
}
