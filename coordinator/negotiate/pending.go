package negotiate

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tutti-go/tutti/fault"
)

// A pendingTensor is a tensor that some rank has submitted and that is not resolved, on the slow
// path.
//
//	state    submittedCount    ready  leaves by
//	waiting  below the ranks   false  recordSubmission, or another rank's join: checkReady
//	grouped  all, but absent   true   the last tensor of its group is resolved
//	gone     any               any    removePending; live is false, and pendingPool may use it again
type pendingTensor struct {
	key key
	set *processSet
	// variants are the requests that were made, each with the lowest rank that made it. There
	// is one, unless ranks disagree.
	variants       []variant
	submitted      Bitset // which ranks have, by index in the set
	submittedCount int    // how many
	rows           []int  // AllGather: first dimensions, by index in the set
	cacheID        int    // -1: none
	// redefine is set when some rank sent the tensor in full, so that its entry must be sent
	// again.
	redefine bool
	since    Time
	stall    stallState
	live     bool // not removed
	// next is what the last rank that sent it in full sent after it: a hint for the ranks that
	// follow.
	next   *pendingTensor
	ready  bool // it waits for the others of its group
	failed *fault.Error
}

// A variant is one of the requests that ranks disagree about, with the lowest rank that made it.
type variant struct {
	spec *Spec
	site string
	rank int
}

// maxVariants bounds what is kept of ranks that all disagree.
const maxVariants = 4

// A groupKey is what the tensors of a group have in common.
type groupKey struct {
	set   uint32
	group uint64
}

// A group is tensors that were submitted as one. None runs before all are ready.
type group struct{ tensors []*pendingTensor }

// receiveCachedID handles a rank's bit on the slow path. The entry may have been evicted after the
// rank sent the bit; then the bit counts as a request in full for what the entry meant.
func (c *Coordinator) receiveCachedID(from, id int) {
	if id >= len(c.cache) || c.cache[id].state == entryFree {
		c.protocolError(from, "submitted by cache ID %d, which is unknown", id)
		return
	}
	s := &c.cache[id]
	if c.fast.counts[id].ranks > 0 {
		c.toSlowPath(id)
	}
	// A live entry has its pending tensor itself. One that is evicted, or whose set was removed, has
	// none: the tensor is found by name then, and fails if there is no such set.
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
	// Nearly always all ranks submit what the entry stands for; then no specs need be compared.
	if len(p.variants) == 1 && p.variants[0].spec == s.spec {
		p.variants[0].rank = min(p.variants[0].rank, from)
	} else {
		p.addVariant(s.spec, s.site, from)
	}
	c.checkReady(p)
}

// receiveRequest handles a request in full. Most ranks submit in the order of the rank before them,
// so that the tensor is mostly the successor of the last one, and no map is read.
func (c *Coordinator) receiveRequest(from int, q *TensorRequest) {
	k := q.key()
	p := c.lastRequest.next // ranks mostly submit in the order of the rank before them
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
	c.checkReady(p)
}

// find returns the pending tensor of a name, or nil. It moves one on the cached path to the slow
// path.
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

// findOrBegin returns the pending tensor of a spec's name, and makes it if there is none. It
// returns nil if the process set does not exist, after it has failed the tensor.
func (c *Coordinator) findOrBegin(t *Spec) *pendingTensor {
	set := c.sets[t.Set]
	if set == nil {
		c.fail(&fault.Error{Kind: fault.Misuse, Op: t.Call(), Err: fmt.Errorf("process set %d was removed", t.Set)}, t.key())
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

// beginPending returns a pending tensor that nobody has submitted. The caller puts it where find
// looks.
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

// recordSubmission notes that a rank has submitted p. It reports false after a protocol error.
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

// setRows notes a member's first dimension of an AllGather.
func (p *pendingTensor) setRows(at, rows int) {
	if p.rows == nil {
		p.rows = make([]int, len(p.set.ranks))
	}
	p.rows[at] = rows
}

// addVariant notes what a rank has submitted.
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
	if len(p.variants) < maxVariants {
		p.variants = append(p.variants, variant{t, site, rank})
	}
}

// removePending forgets a tensor. A report that is being made keeps a copy of it.
func (c *Coordinator) removePending(p *pendingTensor) {
	p.live = false
	c.pendingCount--
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

// sortedPending lists the pending tensors by name. Where the order shows in responses, it must not
// be that of a map.
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

// eachPending yields the pending tensors, in no particular order. All are on the slow path then.
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
