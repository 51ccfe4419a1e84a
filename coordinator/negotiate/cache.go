package negotiate

import (
	"math"
	"slices"
)

// number gives a ready tensor the number that it is launched by: the one that it
// has, a free one of the cache, or one for this launch only.
func (l *Leader) number(p *pending, absent []int) (id uint32, once bool) {
	t := p.variants[0].tensor
	if l.uncached {
		return l.numberOnce(p), true
	}
	if p.slot >= 0 && l.slots[p.slot].state == slotLive && !p.full && (absent == nil || t.Kind != AllGather) {
		l.slots[p.slot].busy = true
		return uint32(p.slot), false
	}
	if absent != nil { // some of its requests are not there to be remembered
		return l.numberOnce(p), true
	}
	if p.slot < 0 {
		slot, ok := l.takeSlot()
		if !ok {
			return l.numberOnce(p), true
		}
		p.slot = slot
		l.cached[p.key] = uint32(slot)
	}
	own := *t
	l.slots[p.slot] = slot{meaning: &own, rows: p.rows, site: p.variants[0].site, state: slotLive, busy: true, used: l.used}
	l.refit(p.slot)
	l.down.Meanings = append(l.down.Meanings, Meaning{ID: uint32(p.slot), Tensor: &own, Rows: p.rows})
	return uint32(p.slot), false
}

// numberOnce is a number beyond the cache. Members forget it after its last
// part, so it is free once that is launched.
func (l *Leader) numberOnce(p *pending) uint32 {
	var id uint32
	if n := len(l.onces); n > 0 {
		id, l.onces = l.onces[n-1], l.onces[:n-1]
	} else {
		id = uint32(l.cfg.Cache) + l.once
		l.once++
	}
	own := *p.variants[0].tensor
	l.down.Meanings = append(l.down.Meanings, Meaning{ID: id, Once: true, Tensor: &own, Rows: p.rows})
	return id
}

// takeSlot is a number of the cache that means nothing.
func (l *Leader) takeSlot() (int, bool) {
	if n := len(l.free); n > 0 {
		id := l.free[n-1]
		l.free = l.free[:n-1]
		return int(id), true
	}
	if len(l.slots) < l.cfg.Cache {
		l.slots = append(l.slots, slot{})
		l.quick.tally = append(l.quick.tally, tally{})
		return len(l.slots) - 1, true
	}
	l.evict()
	return 0, false
}

// evict ends the meaning of the number that was used longest ago, if that was
// long ago: names that come round in turn, and are more than the cache holds,
// would otherwise drive each other out and none be found.
func (l *Leader) evict() {
	oldest, age := -1, uint64(math.MaxUint64)
	for i := range l.slots {
		if s := &l.slots[i]; s.state == slotLive && !s.busy && s.pend == nil && l.quick.tally[i].ranks == 0 && s.used < age {
			oldest, age = i, s.used
		}
	}
	if oldest < 0 || l.used-age < 2*uint64(l.cfg.Cache) {
		return
	}
	l.retire(oldest)
}

// retire ends the meaning of a number; it is understood until all know that.
func (l *Leader) retire(id int) {
	s := &l.slots[id]
	delete(l.cached, s.meaning.key())
	s.state, s.over = slotOver, math.MaxUint32 // until flush numbers the message
	l.refit(id)
	l.down.Over = append(l.down.Over, uint32(id))
	l.drains = append(l.drains, uint32(id))
}

// drain frees the numbers whose end all Members have acknowledged.
func (l *Leader) drain() {
	if len(l.drains) == 0 {
		return
	}
	acked := slices.Min(l.lastAck)
	keep := l.drains[:0]
	for _, id := range l.drains {
		s := &l.slots[id]
		if s.over == math.MaxUint32 {
			s.over = l.seq // the last message of this Step is no earlier than the one that said so
		}
		if s.over > acked {
			keep = append(keep, id)
			continue
		}
		*s = slot{}
		l.free = append(l.free, id)
	}
	l.drains = keep
}
