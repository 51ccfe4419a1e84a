package negotiate

import (
	"math"
	"slices"
)

// assignID gives a ready tensor the number that it is launched by: the one that it
// has, a free one of the cache, or one for this launch only.
func (c *Coordinator) assignID(p *pendingTensor, absent []int) (id uint32, transient bool) {
	t := p.variants[0].spec
	if c.cacheOff {
		return c.assignTransientID(p), true
	}
	if p.cacheID >= 0 && c.cache[p.cacheID].state == entryLive && !p.redefine && (absent == nil || t.Operation != AllGather) {
		c.cache[p.cacheID].queued = true
		return uint32(p.cacheID), false
	}
	if absent != nil { // some of its requests are not there to be remembered
		return c.assignTransientID(p), true
	}
	if p.cacheID < 0 {
		slot, ok := c.allocateID()
		if !ok {
			return c.assignTransientID(p), true
		}
		p.cacheID = slot
		c.cacheIDs[p.key] = uint32(slot)
	}
	own := *t
	c.cache[p.cacheID] = coordinatorEntry{spec: &own, rows: p.rows, site: p.variants[0].site, state: entryLive, queued: true, lastUsed: c.launches}
	c.updateEligible(p.cacheID)
	c.outgoing.Entries = append(c.outgoing.Entries, CacheEntry{ID: uint32(p.cacheID), Spec: &own, Rows: p.rows})
	return uint32(p.cacheID), false
}

// assignTransientID is a number beyond the cache. Members forget it after its last
// part, so it is free once that is launched.
func (c *Coordinator) assignTransientID(p *pendingTensor) uint32 {
	var id uint32
	if n := len(c.freeTransient); n > 0 {
		id, c.freeTransient = c.freeTransient[n-1], c.freeTransient[:n-1]
	} else {
		id = uint32(c.cfg.Cache) + c.transientCount
		c.transientCount++
	}
	own := *p.variants[0].spec
	c.outgoing.Entries = append(c.outgoing.Entries, CacheEntry{ID: id, Transient: true, Spec: &own, Rows: p.rows})
	return id
}

// allocateID is a number of the cache that means nothing.
func (c *Coordinator) allocateID() (int, bool) {
	if n := len(c.freeIDs); n > 0 {
		id := c.freeIDs[n-1]
		c.freeIDs = c.freeIDs[:n-1]
		return int(id), true
	}
	if len(c.cache) < c.cfg.Cache {
		c.cache = append(c.cache, coordinatorEntry{})
		c.fast.counts = append(c.fast.counts, cachedCount{})
		return len(c.cache) - 1, true
	}
	c.evictOldest()
	return 0, false
}

// evictOldest ends the meaning of the number that was used longest ago, if that was
// long ago: names that come round in turn, and are more than the cache holds,
// would otherwise drive each other out and none be found.
func (c *Coordinator) evictOldest() {
	oldest, age := -1, uint64(math.MaxUint64)
	for i := range c.cache {
		if s := &c.cache[i]; s.state == entryLive && !s.queued && s.pending == nil && c.fast.counts[i].ranks == 0 && s.lastUsed < age {
			oldest, age = i, s.lastUsed
		}
	}
	if oldest < 0 || c.launches-age < 2*uint64(c.cfg.Cache) {
		return
	}
	c.evict(oldest)
}

// evict ends the meaning of a number; it is understood until all know that.
func (c *Coordinator) evict(id int) {
	s := &c.cache[id]
	delete(c.cacheIDs, s.spec.key())
	s.state, s.evictedAt = entryEvicted, math.MaxUint32 // until flush numbers the message
	c.updateEligible(id)
	c.outgoing.Evicted = append(c.outgoing.Evicted, uint32(id))
	c.evicting = append(c.evicting, uint32(id))
}

// freeEvicted frees the numbers whose end all Members have acknowledged.
func (c *Coordinator) freeEvicted() {
	if len(c.evicting) == 0 {
		return
	}
	acked := slices.Min(c.lastAck)
	keep := c.evicting[:0]
	for _, id := range c.evicting {
		s := &c.cache[id]
		if s.evictedAt == math.MaxUint32 {
			s.evictedAt = c.seq // the last message of this Step is no earlier than the one that said so
		}
		if s.evictedAt > acked {
			keep = append(keep, id)
			continue
		}
		*s = coordinatorEntry{}
		c.freeIDs = append(c.freeIDs, id)
	}
	c.evicting = keep
}
