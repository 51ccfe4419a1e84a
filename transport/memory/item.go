package memory

import (
	"github.com/tutti-go/tutti/internal/fifo"
	"github.com/tutti-go/tutti/transport"
)

// An item is a queued frame. It refers to the frame; nothing is copied.
type item struct {
	f    *transport.Frame
	size int // bytes of body
}

// items is a queue of frames, 16 bytes for each. The frames belong to their senders, so the
// senders bound their number.
type items = fifo.Queue[item]

// failAll runs the Done of every frame in q with err, oldest first. No lock may be held.
func failAll(q items, err error) {
	for q.Len() > 0 {
		q.Pop().f.Done(err)
	}
}

// copyPart fills dst with the body's bytes from offset off on: those of Body, and then those of
// Parts. It searches the parts from the first one each time, which is cheap because a slice is
// large and the parts are few.
func (it *item) copyPart(dst []byte, off int) {
	b := it.f.Body
	dst = dst[copy(dst, b[min(off, len(b)):]):]
	off = max(0, off-len(b))
	for parts := it.f.Parts; len(dst) > 0; parts = parts[1:] {
		p := parts[0]
		dst = dst[copy(dst, p[min(off, len(p)):]):]
		off = max(0, off-len(p))
	}
}
