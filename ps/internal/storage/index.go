package storage

import "math/bits"

const (
	segmentSlots = 4095           // with the other fields, a segment has 16 KiB
	segmentLimit = 4096 * 13 / 16 // slots in use at which a segment splits
	indexPerRow  = 10             // more bytes than the index takes per row, after some thousand rows
	minRowBits   = 12
)

// A rowIndex finds the number of a row by a 64-bit hash. The package comment describes it. It
// compares hashes only in part, so its caller compares the indices.
type rowIndex struct {
	// The highest bits of a hash select an entry of the directory. Several entries with equal first
	// bits may be the same segment.
	directory []*segment
	shift     uint // 64 - the number of these bits
}

// A segment is a hash table with linear probing.
type segment struct {
	used    uint16
	depth   uint8 // number of highest bits that the hashes have in common
	rowBits uint8 // number of bits of a slot for the row
	slots   [segmentSlots]uint32
}

func newIndex() rowIndex {
	return rowIndex{[]*segment{{rowBits: minRowBits}}, 64}
}

// A cursor is a position in a segment. It probes the slots for one hash.
type cursor struct {
	segment *segment
	at, tag uint32
}

// find returns a cursor for a hash.
func (x *rowIndex) find(hash uint64) cursor {
	c := probe(hash)
	c.segment = x.directory[hash>>x.shift]
	return c
}

// probe returns a cursor for a hash without its segment. The directory takes the highest bits of
// the hash, the position the highest of the lower half, and the tag the lowest.
func probe(hash uint64) cursor {
	return cursor{at: uint32(uint64(uint32(hash)) * segmentSlots >> 32), tag: uint32(hash) << minRowBits}
}

// next returns the next row whose hash may be the cursor's. It returns false at a free slot.
func (c *cursor) next() (row uint32, ok bool) {
	s := c.segment
	mask := uint32(1)<<s.rowBits - 1
	for {
		if c.at >= segmentSlots {
			c.at = 0
		}
		slot := s.slots[c.at]
		if slot == 0 {
			return 0, false
		}
		c.at++
		if (slot^c.tag)&^mask == 0 {
			return slot&mask - 1, true
		}
	}
}

// insert adds a row that the index does not have. The function hashOf returns the hash of any row in
// the index.
func (x *rowIndex) insert(hash uint64, row uint32, hashOf func(row uint32) uint64) {
	for x.directory[hash>>x.shift].used >= segmentLimit {
		x.split(hash, hashOf)
	}
	x.directory[hash>>x.shift].insert(probe(hash), row)
}

// insert puts a row into the first free slot for its hash.
func (s *segment) insert(c cursor, row uint32) {
	if n := bits.Len32(row + 1); n > int(s.rowBits) {
		s.widen(uint8(n))
	}
	at := c.at
	for s.slots[at] != 0 {
		if at++; at == segmentSlots {
			at = 0
		}
	}
	s.slots[at] = c.tag>>s.rowBits<<s.rowBits | (row + 1)
	s.used++
}

// widen gives the rows n bits of a slot, at the expense of the tags.
func (s *segment) widen(n uint8) {
	rows, tags := uint32(1)<<s.rowBits-1, ^(uint32(1)<<n - 1)
	for i, slot := range s.slots {
		s.slots[i] = slot & (rows | tags)
	}
	s.rowBits = n
}

// split divides the segment of a hash by one more bit. The segment becomes one of the halves, so a
// growing index leaves no memory to the garbage collector. split may double the directory.
func (x *rowIndex) split(hash uint64, hashOf func(row uint32) uint64) {
	if x.directory[hash>>x.shift].depth == uint8(64-x.shift) {
		double := make([]*segment, 2*len(x.directory))
		for i := range double {
			double[i] = x.directory[i/2]
		}
		x.directory = double
		x.shift--
	}
	old := x.directory[hash>>x.shift]
	depth, slots := old.depth+1, old.slots
	*old = segment{depth: depth, rowBits: old.rowBits}
	halves := [2]*segment{old, {depth: depth, rowBits: old.rowBits}}
	mask := uint32(1)<<old.rowBits - 1
	for _, slot := range slots {
		if slot == 0 {
			continue
		}
		row := slot&mask - 1
		h := hashOf(row)
		halves[h>>(64-depth)&1].insert(probe(h), row)
	}
	// The entries of old had the bits of its depth in common.
	each := 1 << (64 - x.shift - uint(depth)) // entries of each half
	first := int(hash>>(64-(depth-1))) * 2 * each
	for i := range each {
		x.directory[first+i], x.directory[first+each+i] = halves[0], halves[1]
	}
}
