package memory

import "github.com/tutti-go/tutti/transport"

// keptSlots is how many slots an emptied ring keeps for its next burst.
const keptSlots = 1024

// An item is a frame on its way: by reference, nothing of it is copied.
type item struct {
	f     *transport.Frame
	parts [][]byte // the body's pieces, for SendParts; else nil and the body is f.Body
	size  int      // bytes of body
}

// A ring is a first-in, first-out list of items that allocates only to grow. Its
// owner's lock guards it. The frames in it are their senders', so it is as long
// as they make it: 48 bytes for each frame queued.
type ring struct {
	slots []item // a power of two, or none
	head  int    // the oldest item's slot
	n     int
}

func (r *ring) push(it item) {
	if r.n == len(r.slots) {
		r.grow()
	}
	r.slots[(r.head+r.n)&(len(r.slots)-1)] = it
	r.n++
}

// first is the oldest item; the ring is not empty.
func (r *ring) first() item { return r.slots[r.head] }

// pop takes the oldest item; the ring is not empty.
func (r *ring) pop() item {
	it := r.slots[r.head]
	r.slots[r.head] = item{}
	r.head = (r.head + 1) & (len(r.slots) - 1)
	r.n--
	if r.n == 0 && len(r.slots) > keptSlots {
		*r = ring{}
	}
	return it
}

func (r *ring) grow() {
	bigger := make([]item, max(8, 2*len(r.slots)))
	for i := range r.n {
		bigger[i] = r.slots[(r.head+i)&(len(r.slots)-1)]
	}
	r.slots, r.head = bigger, 0
}

// fail empties the ring, oldest first, with err for every frame's Done. No lock
// may be held.
func (r *ring) fail(err error) {
	for r.n > 0 {
		r.pop().f.Done(err)
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
