package collective

import (
	"github.com/tutti-go/tutti/internal/cpu"
	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/tensor"
)

// chunks is a vector cut into one chunk per rank, in rank order.
//
// The cut is either even, by tensor.Chunk, with starts nil, or given by starts. With width > 0,
// a chunk stands for one subrange of it: width bytes, the sub-th such.
type chunks struct {
	buf    []byte
	n      int
	elem   int     // bytes of an element
	starts []int64 // of chunk 0 to n, in bytes; nil for an even cut
	size   int     // bytes of the shorter chunks of an even cut
	longer int     // number of first chunks that have one element more
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

// longest returns the length of the longest chunk in bytes. The first chunk of an even cut is a
// longest one.
func (c *chunks) longest() (most int) {
	if c.starts == nil { // the first, since those with an element more come first
		return len(c.of(0))
	}
	for i := range c.n {
		most = max(most, len(c.of(i)))
	}
	return most
}

// subrange returns c with each chunk reduced to its bytes i*width up to (i+1)*width, as far as
// it has them.
func (c chunks) subrange(i, width int) chunks {
	c.sub, c.width = i, width
	return c
}

// span returns chunks lo up to, not including, hi as one slice, without regard to subranges.
func (c *chunks) span(lo, hi int) []byte {
	if c.starts != nil {
		return c.buf[c.starts[lo]:c.starts[hi]]
	}
	return c.buf[c.start(lo):c.start(hi)]
}

// start returns the offset of chunk i of an even cut. It multiplies instead of dividing: a
// division takes as long as copying a few bytes, and a cut needs only one.
func (c *chunks) start(i int) int { return i*c.size + min(i, c.longer)*c.elem }

// withBuffer returns another vector, cut in the same way.
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

// cutByCounts cuts buf into a chunk of counts[i] elements of elem bytes for each
// rank i. The counts add up to the elements of buf. The offsets lie in scratch
// memory, which lives until the round ends.
func cutByCounts(r *p2p.Round, buf []byte, counts []int, elem int) chunks {
	n := r.Size()
	starts := tensor.Elements[int64](r.Scratch(8 * (n + 1)))
	starts[0] = 0
	for i, count := range counts {
		starts[i+1] = starts[i] + int64(count*elem)
	}
	return chunks{buf: buf, n: n, elem: elem, starts: starts}
}

// modulo returns a modulo n, which is never negative.
func modulo(a, n int) int { return (a%n + n) % n }

// same reports whether a and b begin at the same byte of memory.
func same(a, b []byte) bool { return len(a) > 0 && len(b) > 0 && &a[0] == &b[0] }

// copyUnlessSame copies src to dst, unless both are the same memory.
func copyUnlessSame(dst, src []byte) {
	if !same(dst, src) {
		copy(dst, src)
	}
}

// copyCached copies this rank's own chunk, unless it lies at its destination. The built-in copy
// writes a megabyte or more past the caches, from where the next step would have to fetch it.
// copyCached therefore copies in blocks what may fit into the caches.
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

// copyCached copies blocks of cachedBlock bytes, and only chunks of at most cachedBytes:
// a longer one does not fit into the caches beside the slots anyway.
const (
	cachedBlock = 256 << 10
	cachedBytes = cpu.MinNonTemporal / 4
)
