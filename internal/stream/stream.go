// Package stream copies memory past the processor's caches.
//
// An ordinary store first reads the line that it writes to, and leaves it in the
// cache, where it displaces another. For memory that is larger than the caches
// both are in vain: written past them it costs a third less traffic, and what is
// worked on stays in cache. Where the memory would have fitted, it is the slower
// way: whoever reads it next finds it nowhere near.
package stream

// MinTotal is from how many bytes on, all that the ranks of a host write in one
// operation, their results are taken to fit into no cache.
const MinTotal = 16 << 20

// Copy does what the built-in copy does for slices that do not overlap. On processors without the instructions
// for it, or for a few bytes, it is that.
func Copy(dst, src []byte) int { return copyNonTemporal(dst, src) }
