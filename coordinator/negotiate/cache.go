package negotiate

import (
	"math"
	"slices"
)

// assignID returns the ID with which a ready tensor is launched. It also reports whether the ID is
// transient. A transient ID is valid for one launch only.
//
//	the tensor                                  ID
//	the cache is off                            transient
//	has a live entry and was submitted by bits  the ID of the entry
//	some ranks are absent                       transient: these ranks have no request to cache
//	no entry, and none is free                  transient; evictOldest makes room for later
//	else                                        a new or redefined entry, which is sent along
//
// An AllGather with absent ranks never uses its entry, because its rows differ from the rows of the
// entry.
func (c *Coordinator) assignID(p *pendingTensor, absent []int) (id uint32, transient bool) {
	t := p.variants[0].spec
	if c.cacheOff {
		return c.assignTransientID(p), true
	}
	if p.cacheID >= 0 && c.cache[p.cacheID].state == entryLive && !p.redefine && (absent == nil || t.Operation != AllGather) {
		c.cache[p.cacheID].queued = true
		return uint32(p.cacheID), false
	}
	if absent != nil { // an absent rank has no request to cache
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

// assignTransientID returns an ID above the IDs of the cache. Workers drop the ID after the last
// part of its tensor. Lists arrive in order, so the ID is free after the list with the last part.
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

// allocateID returns a free ID of the cache. If none is free, it evicts an old entry and returns
// false. The evicted entry's ID becomes free later, when all Workers have acknowledged the
// eviction.
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

// evictOldest evicts the least recently launched entry, but only if its last launch was long ago.
// Plain LRU would fail for a program that cycles through more names than the cache holds: it would
// evict each name just before the name is used again.
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

// evict ends a live entry. The next list tells the Workers. A Worker may have sent a bit for the
// entry before it learned of the eviction. Therefore the Coordinator keeps the entry until all
// Workers have acknowledged the eviction:
//
//	a Worker                          the Coordinator
//	                                  evicts ID 7 in list 20
//	sends bit 7; list 20 is in flight
//	                                  gets bit 7: it means the old tensor, submitted in full
//	applies list 20
//	sends its next list, with ack 20
//	                                  all have acknowledged 20: ID 7 is free for another tensor
func (c *Coordinator) evict(id int) {
	s := &c.cache[id]
	delete(c.cacheIDs, s.spec.key())
	s.state, s.evictedAt = entryEvicted, math.MaxUint32 // until the list gets a number
	c.updateEligible(id)
	c.outgoing.Evicted = append(c.outgoing.Evicted, uint32(id))
	c.evicting = append(c.evicting, uint32(id))
}

// freeEvicted frees the IDs of evicted entries once the slowest Worker has acknowledged the list
// with the eviction. flush calls it after it has numbered that list. A Worker acknowledges a list
// in the next list that it sends. While a rank submits nothing, evicted IDs therefore stay
// unavailable.
func (c *Coordinator) freeEvicted() {
	if len(c.evicting) == 0 {
		return
	}
	acked := slices.Min(c.lastAck)
	keep := c.evicting[:0]
	for _, id := range c.evicting {
		s := &c.cache[id]
		if s.evictedAt == math.MaxUint32 {
			// seq is the number of the last list of this Step. The list with the eviction is not
			// later.
			s.evictedAt = c.seq
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
