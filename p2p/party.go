package p2p

import "github.com/tutti-go/tutti/topology"

// A party is some members of a group, whose ranks a Round counts.
type party struct {
	ranks  []int // the job's rank of each
	rank   int   // this process's place among them
	layout *topology.Layout
	shared *Shared // memory that they have in common; nil: none
}

// SetLayout says where the members run, in their order. All members do so alike,
// before the group gets shared memory and between two rounds. Without it they are
// on one host.
func (g *Group) SetLayout(l *topology.Layout) {
	g.all.layout = l
	g.host = party{}
	me := l.HostOf(g.rank)
	first, end := l.Host(me)
	for place := first; place < end; place++ {
		member := l.Rank(place)
		if member == g.rank {
			g.host.rank = place - first
		}
		g.host.ranks = append(g.host.ranks, g.ranks[member])
	}
	flat := topology.Flat(end - first)
	g.host.layout = &flat
}

// Layout says where the members run.
func (g *Group) Layout() *topology.Layout { return g.all.layout }

// HasHostShared reports whether the members on this rank's host have shared memory:
// of their own, or because the host has all members.
func (g *Group) HasHostShared() bool { return g.host.shared != nil || g.aloneOnHost() && g.HasShared() }

func (g *Group) aloneOnHost() bool { return g.all.layout.Hosts() == 1 }

// Layout says where the round's ranks run.
func (r *Round) Layout() *topology.Layout { return r.on.layout }

// Apart has the round run beside others of the group's: it uses no shared memory,
// which one operation at a time may use. It comes first.
func (r *Round) Apart() {
	r.apart = true
	r.on.shared = nil
}

// Host is the round as seen by the ranks of this rank's host, in the order of the
// group's layout, with the memory that they share.
func (r *Round) Host() *Round {
	on := r.g.host
	if r.g.aloneOnHost() {
		on = r.g.all
	}
	if r.apart {
		on.shared = nil
	}
	return r.round(on)
}

// Among is the round as seen by some of its ranks, who lie as l says: pick(i) is
// the one with rank i among them. It is nil when this rank is none of them. Two
// ranks may meet in several such rounds of one operation when both use them in the
// same order. It costs a few integers, kept until the operation ends.
func (r *Round) Among(l topology.Layout, pick func(i int) int) *Round {
	on := party{ranks: r.rounds.list(l.Size()), rank: none}
	for i := range on.ranks {
		rank := pick(i)
		on.ranks[i] = r.on.ranks[rank]
		if rank == r.on.rank {
			on.rank = i
		}
	}
	if on.rank == none {
		return nil
	}
	some := r.round(on)
	some.on.layout = r.rounds.layout(l)
	return some
}

// rounds are the Rounds of an operation, and the lists of ranks that they have.
// What there is room for here is not allocated.
type rounds struct {
	few     [4]Round
	layouts [4]topology.Layout
	used    int
	laid    int
	worlds  []int
}

// round is a Round of the operation for a party.
func (o *operation) round(on party) *Round {
	rs := o.rounds
	if rs.used == len(rs.few) {
		return &Round{o, on}
	}
	r := &rs.few[rs.used]
	rs.used++
	*r = Round{o, on}
	return r
}

func (rs *rounds) layout(l topology.Layout) *topology.Layout {
	var kept *topology.Layout
	if rs.laid == len(rs.layouts) {
		kept = new(topology.Layout)
	} else {
		kept = &rs.layouts[rs.laid]
		rs.laid++
	}
	*kept = l
	return kept
}

// list is n integers that nobody else uses until the operation ends.
func (rs *rounds) list(n int) []int {
	if cap(rs.worlds)-len(rs.worlds) < n {
		rs.worlds = make([]int, 0, 2*(cap(rs.worlds)+n)) // older lists keep their memory
	}
	at := len(rs.worlds)
	rs.worlds = rs.worlds[:at+n]
	return rs.worlds[at : at+n : at+n]
}

// clear forgets the Rounds but for the first few that are kept.
func (rs *rounds) clear(kept int) {
	clear(rs.few[kept:rs.used])
	clear(rs.layouts[:rs.laid])
	rs.used, rs.laid, rs.worlds = kept, 0, rs.worlds[:0]
}
