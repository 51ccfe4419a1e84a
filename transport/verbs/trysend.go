package verbs

import (
	"github.com/tutti-go/tutti/transport"

	"github.com/tutti-go/tutti/transport/verbs/internal/rdma"
)

// TrySend implements transport.Conn. It posts a frame that fits a message if no other frame is
// queued. The completion of such a frame only frees its message buffer. So its work request is
// signaled only if isSignalDue says so; Unsent requests a completion when it needs one. Once a
// later frame is Done, the device of the peer has also acknowledged this frame. An earlier Close
// may discard the frame.
func (c *conn) TrySend(head, body []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.endpoint
	if c.stage != live || c.err != nil || l.err != nil || c.out.First != nil || !l.hasRoom() || len(head) > transport.MaxHead {
		return false
	}
	p, ok := c.flow.trySend(len(head), len(body))
	if !ok {
		return false
	}
	l.posted++
	b := l.buffer(l.sendBuffers, l.posted)
	p.put(b)
	n := packetLen + copy(b[packetLen:], head)
	n += copy(b[n:], body)
	l.outstanding[l.posted%uint64(l.depth)] = outstanding{bytes: n - packetLen}
	c.unsent.bytes += n - packetLen
	l.batch = append(l.batch[:0], rdma.WorkRequest{ID: l.posted, Signaled: l.isSignalDue(), Mem: b[:n], LKey: l.sendBuffers.LKey, Inline: n <= l.qp.Inline()})
	c.post()
	return true // if posting failed, the Conn has failed, as it may after any frame
}

// Progress implements transport.Conn. It delivers at most one frame and posts what can be posted.
// The device checks its completion queue up to the given number of times. All other work is done
// once.
func (c *conn) Progress(in transport.Sink, spins int) (transport.State, error) {
	if !c.progressing.CompareAndSwap(false, true) {
		return transport.Busy, nil
	}
	state, err := c.progress(in, max(spins, 1))
	c.progressing.Store(false)
	if c.releasable.Load() {
		c.releaseBuffers()
	}
	return state, err
}
