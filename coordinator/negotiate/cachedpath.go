package negotiate

import "math/bits"

// cachedPath counts submissions of cached tensors. Nearly all submissions that a Coordinator
// receives are bits of entries that every rank submits in every step. For these bits the cached
// path makes no pendingTensor. It only counts them, in words of 64 entries. Counting 500 tensors of
// 1,024 ranks takes 0.8 ms.
//
// An entry is eligible if it is live, belongs to the set of all ranks and to no group, has no
// pendingTensor, and has not failed for good. A call of the entry that one rank has refused makes
// the entry ineligible until all other ranks have made the call. Some events first move the entry
// to the slow path, where toSlowPath makes a pendingTensor from the entry's count. These events are
// a full request, a stall report, a join, a shutdown, a refused call and a change of settings.
//
//	event                            cached path         slow path
//	a rank's bit                     counts.ranks + 1    recordSubmission
//	the last rank's bit              enqueueCached       resolve, enqueue
//	a request, join, stall report    toSlowPath          as any pendingTensor
type cachedPath struct {
	eligible Bitset        // entries that are counted on the cached path
	counts   []cachedCount // by cache ID
	// A rank has submitted an entry if the rank's bit differs from the bit in phase. When all ranks
	// have submitted the entry, the bit in phase is flipped, so no rank's bit has to be cleared.
	submitted []Bitset // by rank
	phase     Bitset
}

// A cachedCount is the number of ranks that have submitted an entry, and the time of the first
// submission.
type cachedCount struct {
	since Time
	ranks int
}

// receiveCached handles a rank's bits. After a join or a shutdown of any rank, every tensor takes
// the slow path, because only the slow path handles ranks that do not submit it.
func (c *Coordinator) receiveCached(from int, set Bitset) {
	slow := c.cacheOff || !c.joined.Empty() || !c.shutdown.Empty()
	for w, all := range set {
		var fast uint64
		if !slow && w < len(c.fast.eligible) {
			fast = all & c.fast.eligible[w]
			if !c.countCached(from, w, fast) {
				return
			}
		}
		for rest := all &^ fast; rest != 0; rest &= rest - 1 {
			c.receiveCachedID(from, 64*w+bits.TrailingZeros64(rest))
		}
	}
}

// countCached counts a rank's submissions of eligible entries in word w. The parameter which has
// the bits of these entries. It returns false after a protocol error.
func (c *Coordinator) countCached(from, w int, which uint64) bool {
	if which == 0 {
		return true
	}
	q := &c.fast
	// The sets grow to word w. New words equal phase, which means not submitted.
	for len(q.submitted[from]) <= w {
		q.submitted[from] = append(q.submitted[from], 0)
	}
	for len(q.phase) <= w {
		q.phase = append(q.phase, 0)
	}
	word := &q.submitted[from][w]
	if twice := (*word ^ q.phase[w]) & which; twice != 0 {
		c.protocolError(from, "submitted %q twice before it ran", c.cache[64*w+bits.TrailingZeros64(twice)].spec.Name)
		return false
	}
	// The bits of this rank now differ from phase. When the last rank submits, the bit in phase is
	// flipped. After that, the bits of all ranks equal phase again.
	*word ^= which
	for rest := which; rest != 0; rest &= rest - 1 {
		bit := bits.TrailingZeros64(rest)
		t := &q.counts[64*w+bit]
		t.ranks++
		if t.ranks == 1 {
			t.since = c.now
			c.pendingCount++
			c.exceededSince(c.now, c.cfg.StallWarn)
			c.exceededSince(c.now, c.cfg.StallEnd)
		}
		if t.ranks == c.cfg.Size {
			t.ranks = 0
			q.phase[w] ^= 1 << bit
			c.pendingCount--
			c.enqueueCached(uint32(64*w + bit))
		}
	}
	return true
}

// enqueueCached makes a cached tensor ready after every rank has submitted it by a bit. The entry
// keeps its readyTensor for reuse, because its content is the same in every step.
func (c *Coordinator) enqueueCached(id uint32) {
	s := &c.cache[id]
	// Ranks submit a tensor again only after it has run, so the entry's readyTensor is mostly free.
	// If the readyTensor is still queued, this submission gets another readyTensor.
	u := s.ready
	if u == nil || s.queued {
		u = c.newReady()
		c.initReady(u, id, s.spec, s.rows)
		u.reused = s.ready == nil
		if u.reused {
			s.ready = u
		}
	}
	u.next = 0
	s.queued = true
	c.queueReady(u)
}

// updateEligible adds an entry to eligible or removes it. It is called whenever one of the
// conditions for eligibility may have changed.
func (c *Coordinator) updateEligible(id int) {
	s, q := &c.cache[id], &c.fast
	if s.state == entryLive && s.pending == nil && s.spec.Set == World && s.spec.GroupSize == 0 && c.failures.of(s.spec.key(), 0) == nil && c.refused[s.spec.key()] == nil {
		q.eligible.Add(id)
	} else {
		q.eligible.Remove(id)
	}
}

// toSlowPath makes a pendingTensor for an entry that some ranks have submitted on the cached path.
func (c *Coordinator) toSlowPath(id int) *pendingTensor {
	s, q := &c.cache[id], &c.fast
	// The process set has all ranks, so a rank's index in it is its number.
	t := &q.counts[id]
	p := c.beginPending(s.spec, c.sets[s.spec.Set])
	c.pendingCount-- // the entry was already counted
	p.since, p.cacheID, s.pending = t.since, id, p
	for r := range q.submitted {
		if q.submitted[r].Has(id) == q.phase.Has(id) {
			continue
		}
		q.submitted[r][id/64] ^= 1 << (id % 64)
		p.submitted.Add(r)
		p.submittedCount++
		if s.rows != nil {
			p.setRows(r, s.rows[r])
		}
		p.addVariant(s.spec, s.site, r)
	}
	t.ranks = 0
	c.updateEligible(id)
	return p
}

// allToSlowPath moves every entry that some ranks have submitted to the slow path.
func (c *Coordinator) allToSlowPath() {
	for id := range c.fast.counts {
		if c.fast.counts[id].ranks > 0 {
			c.toSlowPath(id)
		}
	}
}
