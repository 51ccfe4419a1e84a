package negotiate

import "math/bits"

// Nearly all that a leader hears are bits of numbers that everybody submits as the
// step before. For these it only counts, a word of 64 at a time, and makes no pending
// tensor: a quick number is one whose tensor is of all ranks, alone, remembered, and
// not pending otherwise. As soon as anything is asked about one, or a rank joins or
// leaves, it becomes a pending tensor with what was counted so far.
type quick struct {
	can   Bits    // numbers that are quick
	tally []tally // by number
	// A rank has submitted a number when its bit is another than that of phase, which
	// changes when all have; so nothing need be cleared on all ranks.
	said  []Bits // by rank
	phase Bits
}

// A tally is how many ranks have submitted a number, and when the first did.
type tally struct {
	since Time
	ranks int
}

// hearBits are a rank's submissions of cached tensors, as before.
func (l *Leader) hearBits(from int, set Bits) {
	slow := l.uncached || !l.joined.Empty() || !l.leaving.Empty()
	for w, all := range set {
		var fast uint64
		if !slow && w < len(l.quick.can) {
			fast = all & l.quick.can[w]
			if !l.count(from, w, fast) {
				return
			}
		}
		for rest := all &^ fast; rest != 0; rest &= rest - 1 {
			l.hearBit(from, 64*w+bits.TrailingZeros64(rest))
		}
	}
}

// count notes that a rank submits quick numbers, those of word w; false when it lies.
func (l *Leader) count(from, w int, which uint64) bool {
	if which == 0 {
		return true
	}
	q := &l.quick
	for len(q.said[from]) <= w {
		q.said[from] = append(q.said[from], 0) // as phase is there, where not all have submitted yet
	}
	for len(q.phase) <= w {
		q.phase = append(q.phase, 0)
	}
	said := &q.said[from][w]
	if twice := (*said ^ q.phase[w]) & which; twice != 0 {
		l.liar(from, "submits %q twice", l.slots[64*w+bits.TrailingZeros64(twice)].meaning.Name)
		return false
	}
	*said ^= which
	for rest := which; rest != 0; rest &= rest - 1 {
		bit := bits.TrailingZeros64(rest)
		t := &q.tally[64*w+bit]
		t.ranks++
		if t.ranks == 1 {
			t.since = l.now
			l.waiting++
			l.overAt(l.now, l.cfg.StallWarn)
			l.overAt(l.now, l.cfg.StallEnd)
		}
		if t.ranks == l.cfg.Size {
			t.ranks = 0
			q.phase[w] ^= 1 << bit
			l.waiting--
			l.enqueueSlot(uint32(64*w + bit))
		}
	}
	return true
}

// enqueueSlot makes a tensor ready that everybody has submitted by its number.
func (l *Leader) enqueueSlot(id uint32) {
	s := &l.slots[id]
	u := s.unit
	if u == nil || s.busy {
		u = l.newUnit()
		l.fill(u, id, s.meaning, s.rows)
		u.kept = s.unit == nil
		if u.kept {
			s.unit = u
		}
	}
	u.next = 0
	s.busy = true
	l.push(u)
}

// refit decides whether a number is quick.
func (l *Leader) refit(id int) {
	s, q := &l.slots[id], &l.quick
	if s.state == slotLive && s.pend == nil && s.meaning.Set == World && s.meaning.GroupSize == 0 {
		q.can.Add(id)
	} else {
		q.can.Remove(id)
	}
}

// slowly makes a pending tensor of a quick number that some have submitted.
func (l *Leader) slowly(id int) *pending {
	s, q := &l.slots[id], &l.quick
	t := &q.tally[id]
	p := l.begin(s.meaning, l.sets[s.meaning.Set])
	l.waiting-- // it was counted
	p.since, p.slot, s.pend = t.since, id, p
	for r := range q.said {
		if q.said[r].Has(id) == q.phase.Has(id) {
			continue
		}
		q.said[r][id/64] ^= 1 << (id % 64)
		p.got.Add(r)
		p.n++
		if s.rows != nil {
			p.setRows(r, s.rows[r])
		}
		p.vary(s.meaning, s.site, r)
	}
	t.ranks = 0
	l.refit(id)
	return p
}

// allSlowly is slowly for all.
func (l *Leader) allSlowly() {
	for id := range l.quick.tally {
		if l.quick.tally[id].ranks > 0 {
			l.slowly(id)
		}
	}
}
