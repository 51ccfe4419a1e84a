package rendezvous

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// What decides about regions is here, and pure: which tensors recur, and where each
// lies. The memory and the frames are in shelf.go, the sender's side in placed.go.

const (
	watched    = 3       // steps of one size after which a tensor recurs
	forgotten  = 64      // steps after which one that did not come is not watched any more
	maxBerths  = 1 << 12 // of a region, and tensors watched per peer
	berthLen   = 28      // bytes of a berth in the body of a region
	berthAlign = 64      // a berth begins at a multiple of this
)

// A tensorID is what a tensor has in common with itself at other steps: its space and
// its name's number on the link.
type tensorID struct {
	context uint64
	name    uint32
}

// A census counts the steps at which a peer's tensors come.
type census struct {
	habits map[tensorID]habit
	last   stepID // of the tensor noted last
	steps  uint64 // how often another step began, as far as this rank saw
}

// A habit is how a tensor has come so far.
type habit struct {
	size  uint64 // the largest
	times int    // steps since it was larger than ever
	last  uint64 // the step it came at, to count each once
	at    uint64 // census.steps by then
}

// begins reports whether a step begins with a tensor of this one. That is the time to
// plan, when all of the steps before are counted, and before the tensor is.
func (c *census) begins(context, step uint64) bool {
	if now := (stepID{context, step}); now != c.last || c.steps == 0 {
		c.last = now
		c.steps++
		return true
	}
	return false
}

// note counts a tensor.
func (c *census) note(id tensorID, step, size uint64) {
	if c.habits == nil {
		c.habits = make(map[tensorID]habit)
	}
	h, known := c.habits[id]
	switch {
	case !known && len(c.habits) >= maxBerths:
		return
	case !known || size > h.size:
		h.size, h.times = size, 1
	case h.last != step:
		h.times++
	}
	h.last, h.at = step, c.steps
	c.habits[id] = h
}

// A berth is the place of one tensor in a region.
type berth struct {
	id        tensorID
	off, size uint64
	used      bool   // the peer has written to it, and its owner has not given it back
	use       uint32 // how often that has been
}

// plan lays out what recurs, in at most so many bytes; nil where what is laid out now
// serves it as well, and so does not grow stale with each tensor that stays away.
// Where not all of it fits, the first by context and name do.
func (c *census) plan(now map[tensorID]uint32, berths []berth, most uint64) (next []berth, bytes uint64) {
	better := false
	ids := make([]tensorID, 0, len(c.habits))
	for id, h := range c.habits {
		switch {
		case c.steps-h.at > forgotten:
			delete(c.habits, id)
		case h.times >= watched:
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b tensorID) int {
		if a.context != b.context {
			return order(a.context, b.context)
		}
		return order(uint64(a.name), uint64(b.name))
	})
	for _, id := range ids {
		size := c.habits[id].size
		if size > most-bytes {
			continue
		}
		i, served := now[id]
		better = better || !served || berths[i].size < size
		next = append(next, berth{id: id, off: bytes, size: size})
		bytes = min(bytes+(size+berthAlign-1)/berthAlign*berthAlign, most)
	}
	if !better {
		return nil, 0
	}
	return next, bytes
}

func order(a, b uint64) int {
	if a < b {
		return -1
	}
	return 1
}

// index finds berths by what lies in them.
func index(berths []berth) map[tensorID]uint32 {
	by := make(map[tensorID]uint32, len(berths))
	for i, s := range berths {
		by[s.id] = uint32(i)
	}
	return by
}

// putRegion is the body of a region; parseRegion reads one that a peer sent.
func putRegion(berths []berth) []byte {
	le := binary.LittleEndian
	b := make([]byte, 0, len(berths)*berthLen)
	for _, s := range berths {
		b = le.AppendUint32(b, s.id.name)
		b = le.AppendUint64(b, s.id.context)
		b = le.AppendUint64(b, s.off)
		b = le.AppendUint64(b, s.size)
	}
	return b
}

func parseRegion(b []byte) ([]berth, error) {
	if len(b)%berthLen != 0 || len(b)/berthLen > maxBerths {
		return nil, fmt.Errorf("a region of %d bytes, want at most %d times %d", len(b), maxBerths, berthLen)
	}
	le := binary.LittleEndian
	berths := make([]berth, len(b)/berthLen)
	for i := range berths {
		s := b[i*berthLen:]
		berths[i] = berth{id: tensorID{name: le.Uint32(s), context: le.Uint64(s[4:])}, off: le.Uint64(s[12:]), size: le.Uint64(s[20:])}
		if berths[i].off > maxBytes || berths[i].size > maxBytes {
			return nil, fmt.Errorf("a berth of %d bytes at %d", berths[i].size, berths[i].off)
		}
	}
	return berths, nil
}
