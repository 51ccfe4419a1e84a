package negotiate

import (
	"fmt"
	"slices"

	"github.com/tutti-go/tutti/fault"
)

func (in Heard) applyMember(m *Member) {
	d := in.Down
	if d.Seq != m.ack+1 {
		m.liar("sends message %d after %d", d.Seq, m.ack)
		return
	}
	m.ack = d.Seq
	for i := range d.Meanings {
		m.mean(&d.Meanings[i])
	}
	for i := range d.Items {
		if m.ended {
			return
		}
		m.carry(&d.Items[i])
	}
	for _, id := range d.Over {
		m.forget(id)
	}
}

// liar ends the coordinator: the leader says what it never says.
func (m *Member) liar(format string, args ...any) {
	err := &fault.Error{Kind: fault.Mismatch, Op: "coordinator", Rank: m.me, Peers: []fault.Peer{{Rank: 0}}, Err: fmt.Errorf("rank 0 "+format, args...)}
	Failed{err}.applyMember(m)
}

// mean gives a number its meaning.
func (m *Member) mean(e *Meaning) {
	n := m.names[e.Tensor.key()]
	at := entry{tensor: e.Tensor, rows: e.Rows, name: n, set: e.Tensor.Set, cost: Cost(e.Tensor, e.Rows, 0, 1)}
	if set := m.sets[e.Tensor.Set]; e.Rows != nil && (set == nil || len(e.Rows) != len(set.ranks)) {
		m.liar("tells %d first dimensions of %s", len(e.Rows), e.Tensor.Name)
		return
	}
	if e.Once {
		if n != nil {
			n.agreed = false // its request is not what its number, if any, means
		}
		m.onces[e.ID] = &at
		return
	}
	if int(e.ID) >= m.cfg.Cache {
		m.liar("uses number %d, and the cache has %d", e.ID, m.cfg.Cache)
		return
	}
	for len(m.entries) <= int(e.ID) {
		m.entries = append(m.entries, entry{})
	}
	if old := m.entries[e.ID]; old.name != nil && old.name != n {
		m.lose(old.name)
	}
	m.entries[e.ID] = at
	if n != nil {
		n.id, n.agreed = int(e.ID), n.ticket != 0
	}
}

// forget ends the meaning of a number.
func (m *Member) forget(id uint32) {
	if int(id) >= len(m.entries) {
		return
	}
	n := m.entries[id].name
	m.entries[id] = entry{}
	if n == nil {
		return
	}
	if n.ticket != 0 && n.unsent && m.up.Cached.Has(int(id)) {
		// The bit has not gone out; in full it says the same.
		m.up.Cached.Remove(int(id))
		m.up.Requests = append(m.up.Requests, n.request)
	}
	m.lose(n)
}

// lose takes a name's number away.
func (m *Member) lose(n *name) {
	n.id, n.agreed = -1, false
	if n.ticket == 0 {
		m.drop(n)
	}
}

// entry is what a number means; its tensor is nil when that is nothing.
func (m *Member) entry(id uint32) *entry {
	if int(id) < m.cfg.Cache {
		if int(id) < len(m.entries) {
			return &m.entries[id]
		}
	} else if e := m.onces[id]; e != nil {
		return e
	}
	return &entry{}
}

func (m *Member) carry(it *Item) {
	switch it.Kind {
	case ItemRun:
		m.run(it)
	case ItemFail:
		m.fail(it.Failed, it.Err)
	case ItemJoined:
		out := Joined{Ticket: m.joinTicket, Last: it.Rank}
		m.joining, m.joinTicket = false, 0
		m.outs = append(m.outs, out)
	case ItemSet, ItemUnset:
		m.changeSet(it)
	case ItemWhere:
		for _, r := range it.Ranks {
			if r == m.me {
				m.outs = append(m.outs, Where{})
			}
		}
	case ItemAbort:
		own := *it.Err
		own.Rank = m.me
		m.end(&own)
	case ItemTune:
		m.tune(it.Tuning)
	case ItemBye:
		m.end(nil)
	}
}

// run gives out a Bucket.
func (m *Member) run(it *Item) {
	total := 0
	for _, s := range it.Runs {
		if total += int(s.Count); total > maxRun {
			break
		}
	}
	if total == 0 || total > maxRun || it.Parts < 1 || it.Part >= it.Parts || it.Parts > 1 && total > 1 {
		m.liar("launches %d tensors, part %d of %d", total, it.Part, it.Parts)
		return
	}
	b := m.newBucket(it, total)
	for _, s := range it.Runs {
		for i := range s.Count {
			if !m.add(b, s.First+i) {
				return
			}
		}
	}
	m.outs = append(m.outs, Run{b})
}

// manyRefs is how many Refs, and Buckets, memory is made for at once: there is one
// for every part of a large tensor. A Bucket of more has a list of its own.
const manyRefs = 64

// newBucket is an empty Bucket for some tensors.
func (m *Member) newBucket(it *Item, tensors int) *Bucket {
	if len(m.buckets) == 0 {
		m.buckets = make([]Bucket, manyRefs)
	}
	b := &m.buckets[0]
	m.buckets = m.buckets[1:]
	*b = Bucket{Refs: m.newRefs(tensors), Part: it.Part, Parts: it.Parts, Absent: it.Ranks}
	return b
}

func (m *Member) newRefs(n int) (refs []Ref) {
	if n > manyRefs {
		for i, spent := range m.spent {
			if cap(spent) >= n {
				m.spent = slices.Delete(m.spent, i, i+1)
				return spent
			}
		}
		return make([]Ref, 0, n)
	}
	if len(m.refs) < n {
		m.refs = make([]Ref, manyRefs)
	}
	refs, m.refs = m.refs[:0:n], m.refs[n:]
	return refs
}

// maxRun bounds the tensors of a Bucket.
const maxRun = 1 << 20

// add puts a numbered tensor into b.
func (m *Member) add(b *Bucket, id uint32) bool {
	e := m.entry(id)
	if e.tensor == nil {
		m.liar("launches number %d, which means nothing", id)
		return false
	}
	if b.Parts == 1 {
		b.Cost += e.cost
	} else {
		b.Cost += Cost(e.tensor, e.rows, b.Part, b.Parts)
	}
	if e.set != World && !m.in(e.set) {
		b.Outside = true
		return m.used(b, id)
	}
	ref := Ref{Tensor: e.tensor, Rows: e.rows, name: e.name}
	if e.name != nil {
		ref.Ticket = e.name.ticket
	}
	if ref.Ticket == 0 {
		ref.name = nil
		if !contains(b.Absent, m.me) {
			m.liar("launches %s, which this rank has not submitted", e.tensor.Name)
			return false
		}
	}
	b.Refs = append(b.Refs, ref)
	return m.used(b, id)
}

// in reports whether this rank is in a process set.
func (m *Member) in(id uint32) bool {
	set := m.sets[id]
	return set != nil && set.at(m.me) >= 0
}

// used forgets a number that was for one launch.
func (m *Member) used(b *Bucket, id uint32) bool {
	if int(id) >= m.cfg.Cache && b.Part+1 == b.Parts {
		delete(m.onces, id)
	}
	return true
}

func contains(list []int, v int) bool {
	for _, x := range list {
		if x == v {
			return true
		}
	}
	return false
}

// changeSet makes or removes a process set, and ends the request for it.
func (m *Member) changeSet(it *Item) {
	out := Set{ID: it.ID, Name: it.Name, Ranks: it.Ranks}
	if n := m.names[key{Registry, it.Name}]; n != nil {
		out.Ticket = n.ticket
		m.done(n)
	}
	if it.Kind == ItemUnset {
		delete(m.sets, it.ID)
		delete(m.closing, it.ID)
	} else if !validRanks(it.Ranks, m.cfg.Size) {
		m.liar("makes a process set of ranks %v", it.Ranks)
		return
	} else {
		m.sets[it.ID] = newSet(it.Ranks)
	}
	m.outs = append(m.outs, out)
}
