package comm

import (
	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
)

// A program makes the same few calls again and again. What one of them comes to, its
// kernel, its algorithm, its description and its fingerprint, is remembered by the
// communicator: BenchmarkCallAlone has the time that it takes less.

// knownSize is how many calls a communicator remembers, a power of two.
const knownSize = 16

// A known is a blocking call that was prepared before. c.mu guards it.
type known struct {
	of      asked
	number  uint64 // of all that this communicator has remembered; 0: nothing yet
	kernel  reduce.Kernel
	algo    collective.Algorithm
	segment int
	shares  bool
	what    what
	fprint  uint64
}

// An asked is all that a plan's algorithm, description and fingerprint follow from.
type asked struct {
	verb            collective.Verb
	dtype           tensor.DType
	count, root     int
	dst, src, whole int // bytes
	op              Op
}

// plain reports whether the plan's answers follow from what asked holds.
func (pl *plan) plain() bool {
	return pl.as == "" && pl.force == "" && pl.counts == nil && pl.sends == nil && !pl.apart
}

// is reports whether a plain plan asks the same. It compares word by word: to put
// together what == could compare takes longer.
func (a *asked) is(pl *plan) bool {
	return a.verb == pl.verb && a.dtype == pl.dtype && a.count == pl.count && a.root == pl.root && a.op == pl.op &&
		a.whole == pl.bytes && a.dst == len(pl.dst) && a.src == len(pl.src)
}

// slot is where a plain plan is remembered.
func (c *Comm) slot(pl *plan) *known {
	h := uint64(pl.bytes)*0x9e3779b97f4a7c15 + uint64(pl.dtype)*0xbb67ae8584caa73b + pl.op.ID() + uint64(pl.root)<<32
	return &c.known[(h>>32^uint64(pl.verb))%knownSize]
}

// recall makes a plan what one like it came to; false when none is known. c.mu is held.
func (c *Comm) recall(pl *plan) bool {
	k := c.slot(pl)
	if k.number == 0 || !k.of.is(pl) || pl.tangled() { // where the buffers lie is all that lengths do not tell
		return false
	}
	pl.kernel, pl.algo, pl.segment, pl.shares, pl.known = k.kernel, k.algo, k.segment, k.shares, k
	return true
}

// remember keeps what a plan that was prepared has come to. c.mu is held.
func (c *Comm) remember(pl *plan) {
	k := c.slot(pl)
	c.remembered++
	*k = known{number: c.remembered, kernel: pl.kernel, algo: pl.algo, segment: pl.segment, shares: pl.shares}
	k.of = asked{pl.verb, pl.dtype, pl.count, pl.root, len(pl.dst), len(pl.src), pl.bytes, pl.op}
	pl.describe(&k.what)
	k.fprint = k.what.print()
	pl.known = k
}

// forget is for when other answers would be found.
func (c *Comm) forget() { c.known = [knownSize]known{} }
