package negotiate

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tutti-go/tutti/fault"
)

// A pending tensor has been submitted by somebody.
type pending struct {
	key      key
	set      *set
	variants []variant // what was submitted, each with the lowest rank that did
	got      Bits      // who has, by the place in the set
	n        int       // how many have
	rows     []int     // AllGather: first dimensions, by the place in the set
	slot     int       // its number in the cache; -1: none
	full     bool      // somebody sent it in full, so that its meaning is told anew
	since    Time
	stall    stallState
	live     bool     // not dropped
	next     *pending // what the last rank to submit it in full submitted then; a hint
	ready    bool     // waiting for the others of its group
	failed   *fault.Error
}

// A variant is one of the requests that ranks disagree about.
type variant struct {
	tensor *Tensor
	site   string
	rank   int
}

// maxVariants bounds what is remembered of ranks that all disagree.
const maxVariants = 4

type groupKey struct {
	set   uint32
	group uint64
}

// A group is tensors submitted as one: none runs before all are ready.
type group struct{ members []*pending }

// hearBit is a rank's submission of a cached tensor, as before.
func (l *Leader) hearBit(from, id int) {
	if id >= len(l.slots) || l.slots[id].state == slotFree {
		l.liar(from, "submits number %d, which means nothing", id)
		return
	}
	s := &l.slots[id]
	if l.quick.tally[id].ranks > 0 {
		l.slowly(id)
	}
	p := s.pend
	if set := l.sets[s.meaning.Set]; p == nil && s.state == slotLive && set != nil {
		p = l.begin(s.meaning, set)
		p.slot, s.pend = id, p
		l.refit(id)
	} else if p == nil {
		if p = l.pend(s.meaning); p == nil {
			return
		}
	}
	at := p.set.at(from)
	if !l.admit(p, from, at) {
		return
	}
	if s.rows != nil {
		p.setRows(at, s.rows[at])
	}
	p.full = p.full || s.state != slotLive
	if len(p.variants) == 1 && p.variants[0].tensor == s.meaning {
		p.variants[0].rank = min(p.variants[0].rank, from)
	} else {
		p.vary(s.meaning, s.site, from)
	}
	l.check(p)
}

// hearRequest is a rank's submission in full.
func (l *Leader) hearRequest(from int, q *Request) {
	k := q.key()
	p := l.before.next // ranks mostly submit in the order of the one before
	if p == nil || !p.live || p.key != k {
		p = l.find(k)
	}
	if p == nil {
		if p = l.pend(&q.Tensor); p == nil {
			return
		}
	}
	l.before.next = p
	l.before = p
	at := p.set.at(from)
	if !l.admit(p, from, at) {
		return
	}
	if q.Kind == AllGather {
		if q.Rows < 0 || q.Rows > maxElements {
			l.liar(from, "has %d rows of %q", q.Rows, q.Name)
			return
		}
		p.setRows(at, q.Rows)
	}
	p.full = true
	p.vary(&q.Tensor, q.Site, from)
	l.check(p)
}

// find is the pending tensor of a name, or nil.
func (l *Leader) find(k key) *pending {
	if p := l.pending[k]; p != nil {
		return p
	}
	id, ok := l.cached[k]
	switch {
	case !ok:
		return nil
	case l.quick.tally[id].ranks > 0:
		return l.slowly(int(id))
	}
	return l.slots[id].pend
}

// pend begins a pending tensor, or finds it. It is nil when its set is not there: removed, or
// never made.
func (l *Leader) pend(t *Tensor) *pending {
	set := l.sets[t.Set]
	if set == nil {
		l.fail(&fault.Error{Kind: fault.Misuse, Op: t.Call(), Err: fmt.Errorf("process set %d has been removed", t.Set)}, t.key())
		return nil
	}
	k := t.key()
	if p := l.find(k); p != nil {
		return p
	}
	p := l.begin(t, set)
	if id, ok := l.cached[k]; ok {
		p.slot = int(id)
		l.slots[id].pend = p
		l.refit(p.slot)
	} else {
		l.pending[k] = p
	}
	return p
}

// begin is a pending tensor that nobody has submitted.
func (l *Leader) begin(t *Tensor, set *set) (p *pending) {
	if n := len(l.spare); n > 0 {
		p, l.spare = l.spare[n-1], l.spare[:n-1]
		p.got.clear()
		*p = pending{variants: p.variants[:0], got: p.got}
	} else {
		p = new(pending)
	}
	p.key, p.set, p.since, p.slot, p.live = t.key(), set, l.now, -1, true
	l.waiting++
	l.ranked = l.ranked || t.Priority != 0
	l.over(p, l.cfg.StallWarn)
	l.over(p, l.cfg.StallEnd)
	return p
}

// admit notes that a rank has submitted p.
func (l *Leader) admit(p *pending, from, at int) bool {
	switch {
	case at < 0:
		l.liar(from, "submits %q of process set %d, which it is not in", p.key.name, p.key.set)
	case l.joined.Has(from) || l.leaving.Has(from):
		l.liar(from, "submits %q after it has joined or left", p.key.name)
	case !p.got.Add(at):
		l.liar(from, "submits %q twice", p.key.name)
	default:
		p.n++
		return true
	}
	return false
}

func (p *pending) setRows(at, rows int) {
	if p.rows == nil {
		p.rows = make([]int, len(p.set.ranks))
	}
	p.rows[at] = rows
}

// vary notes what a rank submitted.
func (p *pending) vary(t *Tensor, site string, rank int) {
	for i := range p.variants {
		v := &p.variants[i]
		if v.tensor.Differs(t) != "" {
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

// drop forgets a pending tensor.
func (l *Leader) drop(p *pending) {
	p.live = false
	l.waiting--
	if p.slot >= 0 && l.slots[p.slot].pend == p {
		l.slots[p.slot].pend = nil
		l.refit(p.slot)
	} else if l.pending[p.key] == p {
		delete(l.pending, p.key)
	}
	for i, w := range l.warned {
		if w == p { // the report names it all the same
			l.warned[i] = &pending{key: p.key, set: p.set, variants: slices.Clone(p.variants), got: slices.Clone(p.got), n: p.n, since: p.since}
		}
	}
	p.rows = nil
	if len(l.spare) < maxSpare {
		l.spare = append(l.spare, p)
	}
}

const maxSpare = 4096

// all are the pending tensors in the order of their names, so that what follows
// does not depend on a map's order.
func (l *Leader) all() []*pending {
	list := make([]*pending, 0, l.waiting)
	for p := range l.each {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b *pending) int {
		return cmp.Or(cmp.Compare(a.key.set, b.key.set), cmp.Compare(a.key.name, b.key.name))
	})
	return list
}

// each yields the pending tensors, in no order.
func (l *Leader) each(yield func(*pending) bool) {
	l.allSlowly()
	for _, p := range l.pending {
		if !yield(p) {
			return
		}
	}
	for i := range l.slots {
		if p := l.slots[i].pend; p != nil && !yield(p) {
			return
		}
	}
}
