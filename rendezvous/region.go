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
	forgotten  = 64      // as often as this the others come, on average, before one that did not is not watched any more
	maxBerths  = 1 << 12 // of a region, and tensors watched per peer
	berthLen   = 28      // bytes of a berth in the body of a region
	berthAlign = 64      // a berth begins at a multiple of this
	slowest    = 10      // how often the time between regions that gain little doubles
)

// A tensorID is what a tensor has in common with itself at other steps: its space and
// its name's number on the link.
type tensorID struct {
	context uint64
	name    uint32
}

// A census counts the steps at which a peer's tensors come. Its time is the tensors
// counted, since steps of several spaces, and of one, may overlap.
type census struct {
	habits map[tensorID]habit
	turn   uint64 // tensors counted
	swept  uint64 // the turn of the last sweep
	ripe   bool   // something recurs that may have no berth
	after  uint64 // the turn before which nothing is planned: a plan costs some 0.3 µs per tensor
	late   uint64 // the turn from which on a region may be replaced by one that is hardly larger
	slow   uint   // how many have been
}

// A habit is how a tensor has come so far.
type habit struct {
	size  uint64 // the largest
	times int    // steps since it was larger than ever
	step  uint64 // the newest that it came at; others are not counted
	at    uint64 // the turn by then
}

// note counts a tensor, which has a berth of room bytes or, with 0, none. It is ripe
// at the step after it has come to recur: all that comes at its steps is counted then.
func (c *census) note(id tensorID, step, size, room uint64) {
	if c.habits == nil {
		c.habits = make(map[tensorID]habit)
	}
	c.turn++
	h, known := c.habits[id]
	if !known && len(c.habits) >= maxBerths {
		if c.turn-c.swept >= maxBerths {
			c.sweep()
		}
		if len(c.habits) >= maxBerths {
			return
		}
	}
	switch {
	case !known || size > h.size:
		h.size, h.times = size, 1
	case step > h.step:
		h.times++
		c.ripe = c.ripe || h.times == watched+1 && h.size > room
	}
	h.step, h.at = max(h.step, step), c.turn
	c.habits[id] = h
}

// sweep forgets what comes no more.
func (c *census) sweep() {
	c.swept = c.turn
	old := forgotten * uint64(len(c.habits))
	for id, h := range c.habits {
		if c.turn-h.at > old {
			delete(c.habits, id)
		}
	}
}

// due reports that it is time to plan.
func (c *census) due() bool { return c.ripe && c.turn >= c.after }

// again has the same planned once more, much later.
func (c *census) again() {
	c.ripe, c.after = true, c.turn+forgotten*uint64(len(c.habits))
}

// A berth is the place of one tensor in a region.
type berth struct {
	id        tensorID
	off, size uint64
	used      bool   // the peer has written to it, and its owner has not given it back
	use       uint32 // how often that has been
}

// plan is layOut at the time that is right for it: a region is replaced by one that is
// a quarter larger at once, and by another one when some steps have gone, twice as many
// each time. So the memory made for all regions is a small multiple of the last one's,
// even when some tensor is new at each step.
func (c *census) plan(now map[tensorID]uint32, berths []berth, most uint64) (next []berth, bytes uint64) {
	step := uint64(len(c.habits)) // about
	c.after = c.turn + step
	next, bytes = c.layOut(now, berths, most)
	if next == nil {
		c.ripe = false
		return nil, 0
	}
	if n := len(berths); n > 0 {
		have := berths[n-1].off + berths[n-1].size
		if little := bytes < have+have/4; little && c.turn < c.late {
			return nil, 0
		} else if little {
			c.slow = min(c.slow+1, slowest)
		}
	}
	c.ripe, c.late = false, c.turn+watched*step<<c.slow
	return next, bytes
}

// layOut lays out what recurs, in at most so many bytes; nil where what is laid out now
// serves it as well, and so does not grow stale with each tensor that stays away.
// Where not all of it fits, the first by context and name do.
func (c *census) layOut(now map[tensorID]uint32, berths []berth, most uint64) (next []berth, bytes uint64) {
	c.sweep()
	better := false
	ids := make([]tensorID, 0, len(c.habits))
	for id, h := range c.habits {
		if h.times >= watched {
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
		if berths[i].off > maxMessage || berths[i].size > maxMessage {
			return nil, fmt.Errorf("a berth of %d bytes at %d", berths[i].size, berths[i].off)
		}
	}
	return berths, nil
}
