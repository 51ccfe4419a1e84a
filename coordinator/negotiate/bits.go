package negotiate

import "math/bits"

// A Bitset is a set of small numbers: cache IDs or ranks. The zero Bitset is empty.
type Bitset []uint64

// Has reports whether i is in the set.
func (b Bitset) Has(i int) bool { return i/64 < len(b) && b[i/64]&(1<<(i%64)) != 0 }

// Add adds i to the set and reports whether i is new. The set grows as needed.
func (b *Bitset) Add(i int) bool {
	for i/64 >= len(*b) {
		*b = append(*b, 0)
	}
	w, m := &(*b)[i/64], uint64(1)<<(i%64)
	fresh := *w&m == 0
	*w |= m
	return fresh
}

// Remove removes i from the set.
func (b Bitset) Remove(i int) {
	if i/64 < len(b) {
		b[i/64] &^= 1 << (i % 64)
	}
}

// Empty reports whether nothing is in the set.
func (b Bitset) Empty() bool {
	for _, w := range b {
		if w != 0 {
			return false
		}
	}
	return true
}

// Count returns the number of elements of the set.
func (b Bitset) Count() int {
	n := 0
	for _, w := range b {
		n += bits.OnesCount64(w)
	}
	return n
}

// All yields the elements of the set in ascending order.
func (b Bitset) All(yield func(int) bool) {
	for i, w := range b {
		for ; w != 0; w &= w - 1 {
			if !yield(64*i + bits.TrailingZeros64(w)) {
				return
			}
		}
	}
}

// clear empties the set and keeps its memory.
func (b Bitset) clear() {
	for i := range b {
		b[i] = 0
	}
}
