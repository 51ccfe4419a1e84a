package verbs

import (
	"github.com/tutti-go/tutti/transport"

	"github.com/tutti-go/tutti/transport/verbs/internal/rdma"
)

// TrySend implements transport.Conn: a frame that fits a message, and that nothing
// stands before, is posted from here. Its buffer is the only thing that ends with it, so
// that it asks for no completion but in its turn (signalEvery), or Unsent's. The peer's
// device has acknowledged it once a frame behind it is Done; before that, a Close may
// take it back.
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
	return true // where it was not posted, the Conn has failed, as it may behind any frame
}

// Progress delivers at most one frame, and posts what can be posted now. The device
// polls up to spins times for a completion; all else is done once.
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
