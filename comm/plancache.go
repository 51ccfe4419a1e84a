package comm

import (
	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
)

// Programs repeat the same few calls. A communicator therefore caches the kernel, the algorithm,
// the description and the fingerprint of a call. BenchmarkCallAlone measures the time saved.

// planCacheSize is the number of plans that a communicator caches, a power of two. A training step
// makes a few different calls. If two plans share an entry, they evict each other, and the only
// cost is a call of prepare.
const planCacheSize = 16

// A cachedPlan is a blocking call that was prepared before. c.mu guards it.
type cachedPlan struct {
	key         planKey
	number      uint64 // the plan's number among all plans cached here; 0 for an empty entry
	kernel      reduce.Kernel
	algo        collective.Algorithm
	segment     int
	shares      bool
	sig         signature
	fingerprint uint64
}

// A planKey contains everything that determines a plan's algorithm, description and fingerprint.
type planKey struct {
	verb     collective.Verb
	dtype    tensor.DType
	root     int
	dst, src int // the lengths of the buffers in bytes
	op       Op
}

// cacheable reports whether a planKey contains everything that determines the plan. Calls with
// Counts, calls that name an algorithm, calls that overlap others, and calls on behalf of another
// call are not cached. They are rarer, and the key would have to hold slices and names.
func (pl *plan) cacheable() bool {
	return pl.callName == "" && pl.forced == "" && pl.counts == nil && pl.sends == nil && !pl.noShared
}

// matches reports whether a cacheable plan has this key. It compares field by field, because
// building a value for == takes longer.
func (k *planKey) matches(pl *plan) bool {
	return k.verb == pl.verb && k.dtype == pl.dtype && k.root == pl.root && k.op == pl.op &&
		k.dst == len(pl.dst) && k.src == len(pl.src)
}

// planEntry returns the cache entry of a cacheable plan. The cache is direct-mapped: two plans with
// the same entry evict each other.
func (c *Comm) planEntry(pl *plan) *cachedPlan {
	h := uint64(len(pl.dst)+len(pl.src))*0x9e3779b97f4a7c15 + uint64(pl.dtype)*0xbb67ae8584caa73b + pl.op.ID() + uint64(pl.root)<<32
	return &c.planCache[(h>>32^uint64(pl.verb))%planCacheSize]
}

// lookupPlan completes a plan from the cache, and returns false if the plan is not cached. The key
// holds only lengths, so lookupPlan checks again whether the buffers overlap. c.mu is held.
func (c *Comm) lookupPlan(pl *plan) bool {
	k := c.planEntry(pl)
	// The key determines everything except where the buffers lie.
	if k.number == 0 || !k.key.matches(pl) || !pl.inPlace && pl.buffersOverlap(c) {
		return false
	}
	pl.kernel, pl.algo, pl.segment, pl.usesShared, pl.cached = k.kernel, k.algo, k.segment, k.shares, k
	return true
}

// cachePlan caches a prepared plan, with its description and fingerprint. A repeated call then need
// not compute them. c.mu is held.
func (c *Comm) cachePlan(pl *plan) {
	k := c.planEntry(pl)
	c.plansCached++
	*k = cachedPlan{number: c.plansCached, kernel: pl.kernel, algo: pl.algo, segment: pl.segment, shares: pl.usesShared}
	k.key = planKey{pl.verb, pl.dtype, pl.root, len(pl.dst), len(pl.src), pl.op}
	pl.describe(c, &k.sig)
	k.fingerprint = k.sig.hash()
	pl.cached = k
}

// clearPlans empties the cache. It runs when the table, the layout or the shared memory changes,
// because the cached algorithms may then be wrong.
func (c *Comm) clearPlans() { c.planCache = [planCacheSize]cachedPlan{} }
