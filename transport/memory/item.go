package memory

import (
	"github.com/tutti-go/tutti/internal/fifo"
	"github.com/tutti-go/tutti/transport"
)

// An item is a frame on its way: by reference, nothing of it is copied.
type item struct {
	f     *transport.Frame
	parts [][]byte // the body's pieces, for SendParts; else nil and the body is f.Body
	size  int      // bytes of body
}

// items are frames on their way. They are their senders', so there are as many as
// they make: 48 bytes for each frame queued.
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
	if it.parts == nil {
		copy(dst, it.f.Body[off:])
		return
	}
	for _, p := range it.parts {
		if off >= len(p) {
			off -= len(p)
			continue
		}
		n := copy(dst, p[off:])
		dst, off = dst[n:], 0
		if len(dst) == 0 {
			return
		}
	}
}
