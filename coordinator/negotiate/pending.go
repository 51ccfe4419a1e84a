package negotiate

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tutti-go/tutti/fault"
)

// A pendingTensor is a tensor on the slow path that is not resolved yet. At least one rank has
// submitted it.
//
//	state    submittedCount    ready  leaves by
//	waiting  below the ranks   false  recordSubmission, or another rank's join: checkReady
//	grouped  all but absent    true   the last tensor of its group is resolved
//	any      any               any    a rank submits it in another group: failConflicts
//	gone     any               any    removePending; live is false, and pendingPool may use it again
type pendingTensor struct {
	key key
	set *processSet
	// variants holds the different requests of the ranks, each with the lowest rank that made it.
	// There is more than one only if ranks disagree. All variants have the same group, except
	// between checkGroup and failConflicts.
	variants       []variant
	submitted      Bitset // the ranks that have submitted the tensor, by index in the set
	submittedCount int    // the number of these ranks
	rows           []int  // AllGather: first dimensions, by index in the set
	cacheID        int    // -1: no cache ID
	// redefine is set when a rank has sent its request in full, or the bit of an evicted entry. The
	// cache entry must then be sent again.
	redefine bool
	since    Time
	stall    stallState
	live     bool // the tensor has not been removed
	// next is the tensor that followed this tensor in the last list that had both in full. It
	// predicts the order in the lists of the next ranks.
	next   *pendingTensor
	ready  bool // the tensor waits for the other tensors of its group
	failed *fault.Error
}

// A variant is one of the requests that ranks disagree about, with the lowest rank that made it.
type variant struct {
	spec *Spec
	site string
	rank int
}

// maxVariants bounds the number of variants that are stored if many ranks disagree.
const maxVariants = 4

// A groupKey identifies a group.
type groupKey struct {
	set   uint32
	group uint64
}

// A group is a set of tensors that were submitted together. No tensor of a group runs before all
// its tensors are ready.
type group struct{ tensors []*pendingTensor }

// receiveCachedID handles a rank's cached bit on the slow path. If the entry was evicted after the
// rank sent the bit, the bit counts as a full request with the entry's spec.
func (c *Coordinator) receiveCachedID(from, id int) {
	if id >= len(c.cache) || c.cache[id].state == entryFree {
		c.protocolError(from, "submitted cache ID %d, which is unknown", id)
		return
	}
	s := &c.cache[id]
	if c.isRefused(s.spec, from) {
		return
	}
	if c.fast.counts[id].ranks > 0 {
		c.toSlowPath(id)
	}
	// A live entry refers to its pending tensor. An entry that was evicted, or whose set was
	// removed, refers to no pending tensor. In these cases the tensor is looked up by name. The
	// tensor fails if the set does not exist.
	p := s.pending
	if set := c.sets[s.spec.Set]; p == nil && s.state == entryLive && set != nil {
		p = c.beginPending(s.spec, set)
		p.cacheID, s.pending = id, p
		c.updateEligible(id)
	} else if p == nil {
		if p = c.findOrBegin(s.spec); p == nil {
			return
		}
	}
	at := p.set.indexOf(from)
	if !c.recordSubmission(p, from, at) {
		return
	}
	if s.rows != nil {
		p.setRows(at, s.rows[at])
	}
	p.redefine = p.redefine || s.state != entryLive
	// Nearly always all ranks submit the spec of the entry. In that case no specs need to be
	// compared.
	if len(p.variants) == 1 && p.variants[0].spec == s.spec {
		p.variants[0].rank = min(p.variants[0].rank, from)
	} else {
		p.addVariant(s.spec, s.site, from)
	}
	if c.checkGroup(p, s.spec, s.site, from) {
		c.checkReady(p)
	}
}

// receiveRequest handles a request in full. Most ranks submit in the same order. So the tensor is
// mostly lastRequest.next, and no map lookup is needed.
func (c *Coordinator) receiveRequest(from int, q *TensorRequest) {
	if c.isRefused(&q.Spec, from) {
		return
	}
	k := q.key()
	p := c.lastRequest.next // ranks mostly submit in the same order
	if p == nil || !p.live || p.key != k {
		p = c.find(k)
	}
	if p == nil {
		if p = c.findOrBegin(&q.Spec); p == nil {
			return
		}
	}
	c.lastRequest.next = p
	c.lastRequest = p
	at := p.set.indexOf(from)
	if !c.recordSubmission(p, from, at) {
		return
	}
	if q.Operation == AllGather {
		if q.Rows < 0 || q.Rows > maxElements {
			c.protocolError(from, "submitted %d rows of %q", q.Rows, q.Name)
			return
		}
		p.setRows(at, q.Rows)
	}
	p.redefine = true
	p.addVariant(&q.Spec, q.Site, from)
	if c.checkGroup(p, &q.Spec, q.Site, from) {
		c.checkReady(p)
	}
}

// find returns the pending tensor of a name, or nil. A tensor on the cached path is moved to the
// slow path.
func (c *Coordinator) find(k key) *pendingTensor {
	if p := c.pending[k]; p != nil {
		return p
	}
	id, ok := c.cacheIDs[k]
	switch {
	case !ok:
		return nil
	case c.fast.counts[id].ranks > 0:
		return c.toSlowPath(int(id))
	}
	return c.cache[id].pending
}

// findOrBegin returns the pending tensor of a spec's name, and creates it if there is none. If the
// process set does not exist, it fails the tensor and returns nil.
func (c *Coordinator) findOrBegin(t *Spec) *pendingTensor {
	set := c.sets[t.Set]
	if set == nil {
		c.fail(&fault.Error{Kind: fault.Misuse, Op: t.Call(), Err: fmt.Errorf("the process set was removed; submit nothing to it after RemoveProcessSet")}, nil, t.key().tensorName())
		return nil
	}
	k := t.key()
	if p := c.find(k); p != nil {
		return p
	}
	p := c.beginPending(t, set)
	if id, ok := c.cacheIDs[k]; ok {
		p.cacheID = int(id)
		c.cache[id].pending = p
		c.updateEligible(p.cacheID)
	} else {
		c.pending[k] = p
	}
	return p
}

// beginPending returns a pending tensor that no rank has submitted. The caller stores it in pending
// or in the cache entry, where find looks it up.
func (c *Coordinator) beginPending(t *Spec, set *processSet) (p *pendingTensor) {
	if n := len(c.pendingPool); n > 0 {
		p, c.pendingPool = c.pendingPool[n-1], c.pendingPool[:n-1]
		p.submitted.clear()
		*p = pendingTensor{variants: p.variants[:0], submitted: p.submitted}
	} else {
		p = new(pendingTensor)
	}
	p.key, p.set, p.since, p.cacheID, p.live = t.key(), set, c.now, -1, true
	c.pendingCount++
	c.prioritized = c.prioritized || t.Priority != 0
	c.exceeds(p, c.cfg.StallWarn)
	c.exceeds(p, c.cfg.StallEnd)
	return p
}

// recordSubmission records that a rank has submitted p. It returns false after a protocol error.
func (c *Coordinator) recordSubmission(p *pendingTensor, from, at int) bool {
	switch {
	case at < 0:
		c.protocolError(from, "submitted %q in process set %d, of which it is not a member", p.key.name, p.key.set)
	case c.joined.Has(from) || c.shutdown.Has(from):
		c.protocolError(from, "submitted %q after it had joined or shut down", p.key.name)
	case !p.submitted.Add(at):
		c.protocolError(from, "submitted %q twice before it ran", p.key.name)
	default:
		p.submittedCount++
		return true
	}
	return false
}

// setRows records a member's first dimension of an AllGather.
func (p *pendingTensor) setRows(at, rows int) {
	if p.rows == nil {
		p.rows = make([]int, len(p.set.ranks))
	}
	p.rows[at] = rows
}

// addVariant records the spec that a rank has submitted.
func (p *pendingTensor) addVariant(t *Spec, site string, rank int) {
	for i := range p.variants {
		v := &p.variants[i]
		if v.spec.Differs(t) != "" {
			continue
		}
		if rank < v.rank {
			v.rank, v.site = rank, cmp.Or(site, v.site)
		}
		return
	}
	// A variant of another group is always stored, because failConflicts needs it to fail p and
	// that group.
	if len(p.variants) < maxVariants || !p.variants[0].spec.sameGroup(t) {
		p.variants = append(p.variants, variant{t, site, rank})
	}
}

// removePending removes a tensor. A stall report that is in progress keeps a copy of the tensor.
func (c *Coordinator) removePending(p *pendingTensor) {
	p.live = false
	c.pendingCount--
	if q := c.refused[p.key]; q != nil {
		q.before = len(q.calls)
	}
	if p.cacheID >= 0 && c.cache[p.cacheID].pending == p {
		c.cache[p.cacheID].pending = nil
		c.updateEligible(p.cacheID)
	} else if c.pending[p.key] == p {
		delete(c.pending, p.key)
	}
	for i, w := range c.reporting {
		if w == p { // the report keeps a copy
			c.reporting[i] = &pendingTensor{key: p.key, set: p.set, variants: slices.Clone(p.variants), submitted: slices.Clone(p.submitted), submittedCount: p.submittedCount, since: p.since}
		}
	}
	p.rows = nil
	if len(c.pendingPool) < maxPool {
		c.pendingPool = append(c.pendingPool, p)
	}
}

// maxPool bounds each list of objects that are kept for reuse.
const maxPool = 4096

// sortedPending lists the pending tensors by name. It is used where the order affects responses,
// because the iteration order of a map is random.
func (c *Coordinator) sortedPending() []*pendingTensor {
	list := make([]*pendingTensor, 0, c.pendingCount)
	for p := range c.eachPending {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b *pendingTensor) int {
		return cmp.Or(cmp.Compare(a.key.set, b.key.set), cmp.Compare(a.key.name, b.key.name))
	})
	return list
}

// eachPending moves all tensors to the slow path. Then it yields the pending tensors in no
// particular order.
func (c *Coordinator) eachPending(yield func(*pendingTensor) bool) {
	c.allToSlowPath()
	for _, p := range c.pending {
		if !yield(p) {
			return
		}
	}
	for i := range c.cache {
		if p := c.cache[i].pending; p != nil && !yield(p) {
			return
		}
	}
}
