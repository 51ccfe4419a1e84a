package negotiate

import (
	"fmt"
	"slices"

	"github.com/tutti-go/tutti/fault"
)

// absent are the members that have joined without submitting p.
func (l *Leader) absent(p *pending) []int {
	if l.joined.Empty() {
		return nil
	}
	var list []int
	for at, r := range p.set.ranks {
		if l.joined.Has(r) && !p.got.Has(at) {
			list = append(list, r)
		}
	}
	return list
}

// check settles p when nobody is missing any more.
func (l *Leader) check(p *pending) {
	if p.ready || l.ended {
		return
	}
	if p.n == len(p.set.ranks) {
		l.settle(p, nil)
		return
	}
	if l.joined.Empty() && l.leaving.Empty() {
		return
	}
	absent := l.absent(p)
	if p.n+len(absent) == len(p.set.ranks) {
		l.settle(p, absent)
		return
	}
	var gone []fault.Peer
	for at, r := range p.set.ranks {
		if l.leaving.Has(r) && !p.got.Has(at) && !l.joined.Has(r) {
			gone = append(gone, fault.Peer{Rank: r})
		}
	}
	if gone != nil {
		l.forsake(p, &fault.Error{Kind: fault.Closed, Op: p.call(), Peers: gone, Err: fmt.Errorf("these ranks have closed their coordinator without submitting it")})
	}
}

// forsake fails a tensor, and with it those submitted as one with it, before all
// have submitted it: those who have hear it now, the others when they do.
func (l *Leader) forsake(p *pending, err *fault.Error) {
	gk := groupKey{p.key.set, p.variants[0].tensor.Group}
	l.fail(err, p.key)
	l.drop(p)
	if gk.group == 0 {
		return
	}
	delete(l.groups, gk)
	for _, o := range l.all() {
		if o.key.set == gk.set && o.variants[0].tensor.Group == gk.group {
			l.fail(err, o.key)
			l.drop(o)
		}
	}
}

func (p *pending) call() string { return p.variants[0].tensor.Call() }

// settle decides what becomes of a tensor that all have submitted, or are absent
// from.
func (l *Leader) settle(p *pending, absent []int) {
	t := p.variants[0].tensor
	p.failed = l.judge(p, absent)
	if t.GroupSize == 0 {
		l.release(p, absent)
		return
	}
	p.ready = true
	gk := groupKey{t.Set, t.Group}
	g := l.groups[gk]
	if g == nil {
		g = new(group)
		l.groups[gk] = g
	}
	g.members = append(g.members, p)
	if len(g.members) < t.GroupSize {
		return
	}
	delete(l.groups, gk)
	for _, m := range g.members {
		if m.failed != nil {
			p.failed = m.failed
		}
	}
	for _, m := range g.members {
		m.failed = p.failed
		l.release(m, l.absent(m))
	}
}

// judge is why a tensor cannot run, or nil.
func (l *Leader) judge(p *pending, absent []int) *fault.Error {
	if len(p.variants) > 1 {
		return p.mismatch()
	}
	t := p.variants[0].tensor
	if len(absent) == 0 {
		return nil
	}
	for _, r := range absent {
		if t.Root >= 0 && t.Root < len(p.set.ranks) && p.set.ranks[t.Root] == r {
			return &fault.Error{Kind: fault.Misuse, Op: t.Call(), Peers: []fault.Peer{{Rank: r, Call: "join"}}, Err: fmt.Errorf("the root has joined, so it gives nothing")}
		}
	}
	switch {
	case t.NoIdentity:
		return &fault.Error{Kind: fault.Misuse, Op: t.Call(), Peers: blame(absent, "join"), Err: fmt.Errorf("ranks have joined, and operator %s has no identity that they could give", t.Op)}
	case t.Set == Registry:
		return &fault.Error{Kind: fault.Misuse, Op: t.Call(), Peers: blame(absent, "join"), Err: fmt.Errorf("process sets change while no rank has joined")}
	}
	return nil
}

func blame(ranks []int, call string) []fault.Peer {
	var peers []fault.Peer
	for _, r := range ranks[:min(len(ranks), fault.MaxPeers)] {
		peers = append(peers, fault.Peer{Rank: r, Call: call})
	}
	return peers
}

// mismatch names the lowest rank, and the lowest that disagrees with it.
func (p *pending) mismatch() *fault.Error {
	slices.SortFunc(p.variants, func(a, b variant) int { return a.rank - b.rank })
	a, b := p.variants[0], p.variants[1]
	return &fault.Error{
		Kind: fault.Mismatch, Op: fmt.Sprintf("%v %s", a.tensor.Kind, p.key.name),
		Peers: []fault.Peer{{Rank: a.rank, Call: a.tensor.Call(), At: a.site}, {Rank: b.rank, Call: b.tensor.Call(), At: b.site}},
		Err:   fmt.Errorf("the ranks disagree about the %s", a.tensor.Differs(b.tensor)),
	}
}

// release takes a settled tensor out of the pending ones and queues it, or fails.
func (l *Leader) release(p *pending, absent []int) {
	if p.failed != nil {
		l.fail(p.failed, p.key)
		l.drop(p)
		return
	}
	t := p.variants[0].tensor
	switch t.Kind {
	case AddSet, RemoveSet:
		l.changeSets(p, t)
	default:
		l.enqueue(p, absent)
	}
	l.drop(p)
}

// fail tells those who have submitted tensors that they failed.
func (l *Leader) fail(err *fault.Error, k key) {
	l.down.Items = append(l.down.Items, Item{Kind: ItemFail, Err: err, Failed: []Named{{k.set, k.name}}})
}
