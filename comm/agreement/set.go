package agreement

import "math/bits"

// A Set is a set of members of a communicator, with one bit per member. It is immutable. Two Sets
// of the same members of a communicator compare equal.
type Set string

// All returns the set of n members.
func All(n int) Set {
	b := make([]byte, (n+7)/8)
	for r := range n {
		b[r/8] |= 1 << (r % 8)
	}
	return Set(b)
}

// Has reports whether r is in the set.
func (s Set) Has(r int) bool { return r/8 < len(s) && s[r/8]&(1<<(r%8)) != 0 }

// with returns the set that also includes r.
func (s Set) with(r int) Set {
	if s.Has(r) {
		return s
	}
	b := []byte(s)
	b[r/8] |= 1 << (r % 8)
	return Set(b)
}

// Without returns the set that does not include r.
func (s Set) Without(r int) Set {
	if !s.Has(r) {
		return s
	}
	b := []byte(s)
	b[r/8] &^= 1 << (r % 8)
	return Set(b)
}

// Minus returns the members of s that are not in other.
func (s Set) Minus(other Set) Set {
	b := []byte(s)
	for i := range min(len(b), len(other)) {
		b[i] &^= other[i]
	}
	return Set(b)
}

// Len returns the number of members.
func (s Set) Len() int {
	n := 0
	for i := range len(s) {
		n += bits.OnesCount8(s[i])
	}
	return n
}

// Lowest returns the lowest member, or -1 if there is none.
func (s Set) Lowest() int {
	for i := range len(s) {
		if s[i] != 0 {
			return 8*i + bits.TrailingZeros8(s[i])
		}
	}
	return -1
}

// Ranks returns the members in ascending order.
func (s Set) Ranks() []int {
	ranks := make([]int, 0, s.Len())
	for r := range 8 * len(s) {
		if s.Has(r) {
			ranks = append(ranks, r)
		}
	}
	return ranks
}
