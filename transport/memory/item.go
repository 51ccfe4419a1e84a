package memory

import (
	"github.com/tutti-go/tutti/internal/fifo"
	"github.com/tutti-go/tutti/transport"
)

// An item is a frame on its way: by reference, nothing of it is copied.
type item struct {
	f    *transport.Frame
	size int // bytes of body
}

// items are frames on their way. They are their senders', so there are as many as
// they make: 16 bytes for each frame queued.
type items = fifo.Queue[item]

// failAll empties q, oldest first, with err for every frame's Done. No lock may be
// held.
func failAll(q items, err error) {
	for q.Len() > 0 {
		q.Pop().f.Done(err)
	}
}

// copyPart copies the body's bytes from off on into dst, and fills it.
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
