package collective

import (
	"github.com/tutti-go/tutti/internal/cpu"
	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/tensor"
)

// The type chunks is a vector that is cut into one chunk per rank, in rank order.
//
// If starts is nil, the cut is even, as in tensor.Chunk. Otherwise starts holds the offsets of the
// chunks. If width > 0, only one subrange of each chunk is selected: bytes sub*width up to
// (sub+1)*width.
type chunks struct {
	buf    []byte
	n      int
	elem   int     // bytes of an element
	starts []int64 // offsets of chunks 0 to n in bytes, n being the end; nil for an even cut
	size   int     // bytes of the shorter chunks of an even cut
	longer int     // number of longer chunks, which come first and have one element more
	sub    int     // index of the subrange
	width  int     // bytes of a subrange; 0: chunks are whole
}

// of returns chunk i, or the selected subrange of it.
func (c *chunks) of(i int) []byte {
	if c.width > 0 {
		return blockOf(c.span(i, i+1), c.sub, c.width)
	}
	return c.span(i, i+1)
}

// longest returns the length of the longest chunk in bytes. In an even cut, no chunk is longer than
// the first chunk.
func (c *chunks) longest() (most int) {
	if c.starts == nil { // the first chunk, because longer chunks come first
		return len(c.of(0))
	}
	for i := range c.n {
		most = max(most, len(c.of(i)))
	}
	return most
}

// subrange returns c with each chunk reduced to its subrange i: bytes i*width up to (i+1)*width,
// or up to the end of the chunk.
func (c chunks) subrange(i, width int) chunks {
	c.sub, c.width = i, width
	return c
}

// span returns chunks lo to hi-1 as one slice. It ignores subranges.
func (c *chunks) span(lo, hi int) []byte {
	if c.starts != nil {
		return c.buf[c.starts[lo]:c.starts[hi]]
	}
	return c.buf[c.start(lo):c.start(hi)]
}

// start returns the offset of chunk i of an even cut. It needs no division, because cutEvenly has
// computed size and longer. A division would take as long as a copy of a few bytes.
func (c *chunks) start(i int) int { return i*c.size + min(i, c.longer)*c.elem }

// withBuffer returns buf, cut in the same way as c.
func (c chunks) withBuffer(buf []byte) chunks {
	if c.starts == nil && len(buf) != len(c.buf) {
		other := cutEvenly(buf, c.n, c.elem)
		c.size, c.longer = other.size, other.longer
	}
	c.buf = buf
	return c
}

// evenChunks cuts buf into one chunk per rank of r.
func evenChunks(r *p2p.Round, buf []byte, elem int) chunks { return cutEvenly(buf, r.Size(), elem) }

// cutEvenly cuts buf into n chunks by tensor.Chunk.
func cutEvenly(buf []byte, n, elem int) chunks {
	count := len(buf)
	if elem != 1 {
		count /= elem
	}
	return chunks{buf: buf, n: n, elem: elem, size: count / n * elem, longer: count % n}
}

// cutByCounts cuts buf into a chunk of counts[i] elements of elem bytes for each rank i. The sum
// of the counts is the number of elements in buf. The offsets lie in scratch memory, which stays
// valid until the round ends.
func cutByCounts(r *p2p.Round, buf []byte, counts []int, elem int) chunks {
	n := r.Size()
	starts := tensor.Elements[int64](r.Scratch(8 * (n + 1)))
	starts[0] = 0
	for i, count := range counts {
		starts[i+1] = starts[i] + int64(count*elem)
	}
	return chunks{buf: buf, n: n, elem: elem, starts: starts}
}

// modulo returns the remainder of a divided by n. The result is never negative.
func modulo(a, n int) int { return (a%n + n) % n }

// same reports whether a and b begin at the same byte of memory.
func same(a, b []byte) bool { return len(a) > 0 && len(b) > 0 && &a[0] == &b[0] }

// copyUnlessSame copies src to dst, unless both are the same memory.
func copyUnlessSame(dst, src []byte) {
	if !same(dst, src) {
		copy(dst, src)
	}
}

// copyCached copies this rank's own chunk, unless dst and src are the same memory. The built-in
// copy bypasses the caches for copies of a megabyte or more, so the next step would have to
// fetch the chunk from memory. copyCached therefore copies in small blocks if the chunk may fit
// into the caches.
func copyCached(dst, src []byte) {
	if same(dst, src) {
		return
	}
	if len(src) <= cachedBytes && !tensor.Overlap(dst, src) {
		for len(src) > cachedBlock {
			copy(dst, src[:cachedBlock])
			dst, src = dst[cachedBlock:], src[cachedBlock:]
		}
	}
	copy(dst, src)
}

// copyCached copies in blocks of cachedBlock bytes if the chunk has at most cachedBytes. A longer
// chunk does not fit into the caches together with the slots.
const (
	cachedBlock = 256 << 10
	cachedBytes = cpu.MinNonTemporal / 4
)
