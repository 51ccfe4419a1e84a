package verbs

import (
	"time"

	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/verbs/internal/rdma"
)

// unsent counts the bytes of frames that the caller has sent over the queue pair and the peer's
// device has not acknowledged.
//
//	bytes  since   meaning
//	0      zero    everything is acknowledged
//	>0     a time  nothing has been acknowledged since then
//	>0     zero    TrySend has added bytes to 0, but not read the clock; the next Unsent sets since
type unsent struct {
	bytes int
	since time.Time // time of the last acknowledgement
}

// sizeOf returns the number of bytes of f, head and body.
func sizeOf(f *transport.Frame) int { return len(f.Head) + f.Size() }

// add counts n more bytes.
func (u *unsent) add(n int) {
	if u.bytes == 0 {
		u.since = time.Now()
	}
	u.bytes += n
}

// sub counts n bytes as acknowledged. This restarts the time of the remaining bytes.
func (u *unsent) sub(n int) {
	u.bytes -= n
	u.since = time.Time{}
	if u.bytes > 0 {
		u.since = time.Now()
	}
}

// Unsent implements transport.Conn. It returns the number of bytes of heads and bodies that the
// peer's device has not acknowledged, and the time since which it has acknowledged none. For frames
// of TrySend, this time is the time of the first Unsent after them.
//
// TrySend may post a frame without requesting a completion. Such a frame would count forever. So
// Unsent requests a completion, which a later call sees.
func (c *conn) Unsent() (bytes int, since time.Time) {
	if bytes, since = c.setup.Unsent(); bytes > 0 {
		return bytes, since
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unsent.bytes > 0 && c.unsent.since.IsZero() {
		c.unsent.since = time.Now()
	}
	c.requestCompletion()
	return c.unsent.bytes, c.unsent.since
}

// Traffic returns the set-up link's counts of bytes, or zeros if that link has no counts. With
// these counts, the layer above detects silence on a Conn that stays on the set-up link because its
// peer has no device. The queue pair needs no counts, because its device reports work requests that
// the peer's device does not acknowledge.
func (c *conn) Traffic() (sent, acked, received, arrived uint64) {
	if t, ok := c.setup.(interface {
		Traffic() (sent, acked, received, arrived uint64)
	}); ok {
		return t.Traffic()
	}
	return 0, 0, 0, 0
}

// requestCompletion posts a write of no bytes if bytes are outstanding and no completion is.
// The completion of that write stands for all work requests before it. Such a write consumes no
// receive and is not reported at the peer. Devices do not check its address (InfiniBand
// Architecture Specification, C9-88). mu is held.
func (c *conn) requestCompletion() {
	l := c.endpoint
	if c.unsent.bytes == 0 || c.stage != live || c.err != nil || l.err != nil || l.lastSignaled > l.completed || l.posted == l.completed {
		return
	}
	l.posted++ // there is room, because at least one of depth work requests is signaled
	l.batch = append(l.batch[:0], rdma.WorkRequest{ID: l.posted, Signaled: true, Write: true, NoImm: true})
	c.post()
}
