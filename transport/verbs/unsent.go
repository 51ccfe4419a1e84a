package verbs

import (
	"time"

	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/verbs/internal/rdma"
)

// unsent is how many bytes of frames the owner has given for the queue pair that the
// peer's device has not acknowledged, and since when it has acknowledged none.
type unsent struct {
	bytes int
	since time.Time // zero: since nobody knows when; TrySend does not look at the clock
}

// sizeOf is what f counts for.
func sizeOf(f *transport.Frame) int { return len(f.Head) + f.Size() }

func (u *unsent) add(n int) {
	if u.bytes == 0 {
		u.since = time.Now()
	}
	u.bytes += n
}

func (u *unsent) sub(n int) {
	u.bytes -= n
	u.since = time.Time{}
	if u.bytes > 0 {
		u.since = time.Now()
	}
}

// Unsent is how many bytes of frames, heads and bodies, this end has taken and the
// peer's device has not acknowledged, and since when it has acknowledged none; of
// frames that went by TrySend, since the first Unsent behind them. Zero: nothing waits.
// A frame whose device does not have to say that it has come would wait for ever:
// Unsent has it say so, and the next one tells what it has said.
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

// requestCompletion posts a write of no bytes, if bytes are on their way and no completion is, for
// the sake of its completion: it stands for all before it. Such a write takes no
// receive at the peer, which does not hear of it, and no device asks where it may go
// (InfiniBand's C9-88). mu is held.
func (c *conn) requestCompletion() {
	l := c.endpoint
	if c.unsent.bytes == 0 || c.stage != live || c.err != nil || l.err != nil || l.lastSignaled > l.completed || l.posted == l.completed {
		return
	}
	l.posted++ // there is room: of as many works as there can be, one is signalled
	l.batch = append(l.batch[:0], rdma.WorkRequest{ID: l.posted, Signaled: true, Write: true, NoImm: true})
	c.post()
}
