package memory

import (
	"github.com/tutti-go/tutti/internal/fifo"
	"github.com/tutti-go/tutti/transport"
)

// An item is a queued frame. It holds a pointer to the frame and no copy.
type item struct {
	f    *transport.Frame
	size int // bytes of body
}

// items is a queue of frames, 16 bytes for each. The queue has no bound of its own. The frames are
// the senders' memory, so the senders bound it.
type items = fifo.Queue[item]

// failAll runs the Done of every frame in q with err, oldest first. No lock may be held.
func failAll(q items, err error) {
	for q.Len() > 0 {
		q.Pop().f.Done(err)
	}
}

// copyPart fills dst with the bytes of the body that begin at offset off. The body is Body followed
// by Parts. copyPart searches the parts from the beginning each time. This is cheap, because a
// slice is large and a body has few parts.
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
