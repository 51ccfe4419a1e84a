package negotiate

import "math/bits"

// Nearly all that a leader hears are bits of numbers that everybody submits as the
// step before. For these it only counts, a word of 64 at a time, and makes no pending
// tensor: a quick number is one whose tensor is of all ranks, alone, remembered, and
// not pending otherwise. As soon as anything is asked about one, or a rank joins or
// leaves, it becomes a pending tensor with what was counted so far.
type cachedPath struct {
	eligible Bitset        // numbers that are quick
	counts   []cachedCount // by number
	// A rank has submitted a number when its bit is another than that of phase, which
	// changes when all have; so nothing need be cleared on all ranks.
	submitted []Bitset // by rank
	phase     Bitset
}

// A cachedCount is how many ranks have submitted a number, and when the first did.
type cachedCount struct {
	since Time
	ranks int
}

// receiveCached are a rank's submissions of cached tensors, as before.
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

// countCached notes that a rank submits quick numbers, those of word w; false when it lies.
func (c *Coordinator) countCached(from, w int, which uint64) bool {
	if which == 0 {
		return true
	}
	q := &c.fast
	for len(q.submitted[from]) <= w {
		q.submitted[from] = append(q.submitted[from], 0) // as phase is there, where not all have submitted yet
	}
	for len(q.phase) <= w {
		q.phase = append(q.phase, 0)
	}
	word := &q.submitted[from][w]
	if twice := (*word ^ q.phase[w]) & which; twice != 0 {
		c.protocolError(from, "submitted %q twice before it ran", c.cache[64*w+bits.TrailingZeros64(twice)].spec.Name)
		return false
	}
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

// enqueueCached makes a tensor ready that everybody has submitted by its number.
func (c *Coordinator) enqueueCached(id uint32) {
	s := &c.cache[id]
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

// updateEligible decides whether a number is quick.
func (c *Coordinator) updateEligible(id int) {
	s, q := &c.cache[id], &c.fast
	if s.state == entryLive && s.pending == nil && s.spec.Set == World && s.spec.GroupSize == 0 {
		q.eligible.Add(id)
	} else {
		q.eligible.Remove(id)
	}
}

// toSlowPath makes a pending tensor of a quick number that some have submitted.
func (c *Coordinator) toSlowPath(id int) *pendingTensor {
	s, q := &c.cache[id], &c.fast
	t := &q.counts[id]
	p := c.beginPending(s.spec, c.sets[s.spec.Set])
	c.pendingCount-- // it was counted
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

// allToSlowPath is slowly for all.
func (c *Coordinator) allToSlowPath() {
	for id := range c.fast.counts {
		if c.fast.counts[id].ranks > 0 {
			c.toSlowPath(id)
		}
	}
}
