package comm

import (
	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
)

// Programs repeat the same few calls. A communicator therefore caches the kernel, the algorithm,
// the description and the fingerprint of a call. BenchmarkCallAlone measures the time saved.

// planCacheSize is how many plans a communicator caches, a power of two. A training step makes
// a few different calls; two that share an entry evict each other, which costs a prepare and
// nothing else.
const planCacheSize = 16

// A cachedPlan is a blocking call that was prepared before. c.mu guards it.
type cachedPlan struct {
	key         planKey
	number      uint64 // of all plans that this communicator has cached; 0: an empty entry
	kernel      reduce.Kernel
	algo        collective.Algorithm
	segment     int
	shares      bool
	sig         signature
	fingerprint uint64
}

// A planKey is all that the algorithm, the description and the fingerprint of a plan depend on.
type planKey struct {
	verb            collective.Verb
	dtype           tensor.DType
	count, root     int
	dst, src, bytes int // bytes
	op              Op
}

// cacheable reports whether a planKey holds all that the plan depends on. Counts, an algorithm
// that the call names, and calls beside others are left out: they are rarer, and the key would
// have to hold slices.
func (pl *plan) cacheable() bool {
	return pl.callName == "" && pl.forced == "" && pl.counts == nil && pl.sends == nil && !pl.noShared
}

// matches reports whether a cacheable plan has this key. It compares field by field: to build a
// value that == could compare takes longer.
func (k *planKey) matches(pl *plan) bool {
	return k.verb == pl.verb && k.dtype == pl.dtype && k.count == pl.count && k.root == pl.root && k.op == pl.op &&
		k.bytes == pl.bytes && k.dst == len(pl.dst) && k.src == len(pl.src)
}

// planEntry returns where a cacheable plan is cached. The cache is direct-mapped: two plans of one
// entry evict each other.
func (c *Comm) planEntry(pl *plan) *cachedPlan {
	h := uint64(pl.bytes)*0x9e3779b97f4a7c15 + uint64(pl.dtype)*0xbb67ae8584caa73b + pl.op.ID() + uint64(pl.root)<<32
	return &c.planCache[(h>>32^uint64(pl.verb))%planCacheSize]
}

// lookupPlan completes a plan from the cache, and returns false if the plan is not cached. The key
// holds only lengths, so lookupPlan checks again whether the buffers overlap. c.mu is held.
func (c *Comm) lookupPlan(pl *plan) bool {
	k := c.planEntry(pl)
	if k.number == 0 || !k.key.matches(pl) || pl.buffersOverlap(c) { // where the buffers lie is all that lengths do not tell
		return false
	}
	pl.kernel, pl.algo, pl.segment, pl.usesShared, pl.cached = k.kernel, k.algo, k.segment, k.shares, k
	return true
}

// cachePlan caches a plan that was prepared, with its description and fingerprint, which a
// repeated call then need not compute. c.mu is held.
func (c *Comm) cachePlan(pl *plan) {
	k := c.planEntry(pl)
	c.plansCached++
	*k = cachedPlan{number: c.plansCached, kernel: pl.kernel, algo: pl.algo, segment: pl.segment, shares: pl.usesShared}
	k.key = planKey{pl.verb, pl.dtype, pl.count, pl.root, len(pl.dst), len(pl.src), pl.bytes, pl.op}
	pl.describe(c, &k.sig)
	k.fingerprint = k.sig.hash()
	pl.cached = k
}

// clearPlans empties the cache: another table chooses other algorithms, and another layout or
// other shared memory allows others.
func (c *Comm) clearPlans() { c.planCache = [planCacheSize]cachedPlan{} }
