package p2p

import "github.com/tutti-go/tutti/topology"

// A subgroup is some members of a group, whose ranks a Round counts.
type subgroup struct {
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
	g.host = subgroup{}
	me := l.HostOf(g.rank)
	first, end := l.Host(me)
	for at := first; at < end; at++ {
		member := l.Rank(at)
		if member == g.rank {
			g.host.rank = at - first
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
func (g *Group) HasHostShared() bool { return g.host.shared != nil || g.singleHost() && g.HasShared() }

func (g *Group) singleHost() bool { return g.all.layout.Hosts() == 1 }

// Layout says where the round's ranks run.
func (r *Round) Layout() *topology.Layout { return r.sub.layout }

// DisableShared has the round run beside others of the group's: it uses no shared memory,
// which one operation at a time may use. It comes first.
func (r *Round) DisableShared() {
	r.noShared = true
	r.sub.shared = nil
}

// Host is the round as seen by the ranks of this rank's host, in the order of the
// group's layout, with the memory that they share.
func (r *Round) Host() *Round {
	on := r.g.host
	if r.g.singleHost() {
		on = r.g.all
	}
	if r.noShared {
		on.shared = nil
	}
	return r.round(on)
}

// Among is the round as seen by some of its ranks, who lie as l says: pick(i) is
// the one with rank i among them. It is nil when this rank is none of them. Two
// ranks may meet in several such rounds of one operation when both use them in the
// same order. It costs a few integers, kept until the operation ends.
func (r *Round) Among(l topology.Layout, pick func(i int) int) *Round {
	on := subgroup{ranks: r.arena.allocRanks(l.Size()), rank: none}
	for i := range on.ranks {
		rank := pick(i)
		on.ranks[i] = r.sub.ranks[rank]
		if rank == r.sub.rank {
			on.rank = i
		}
	}
	if on.rank == none {
		return nil
	}
	some := r.round(on)
	some.sub.layout = r.arena.allocLayout(l)
	return some
}

// roundArena are the Rounds of an operation, and the lists of ranks that they have.
// What there is room for here is not allocated.
type roundArena struct {
	rounds      [4]Round
	layouts     [4]topology.Layout
	roundsUsed  int
	layoutsUsed int
	ranks       []int
}

// round is a Round of the operation for a party.
func (o *operation) round(on subgroup) *Round {
	rs := o.arena
	if rs.roundsUsed == len(rs.rounds) {
		return &Round{o, on}
	}
	r := &rs.rounds[rs.roundsUsed]
	rs.roundsUsed++
	*r = Round{o, on}
	return r
}

func (rs *roundArena) allocLayout(l topology.Layout) *topology.Layout {
	var kept *topology.Layout
	if rs.layoutsUsed == len(rs.layouts) {
		kept = new(topology.Layout)
	} else {
		kept = &rs.layouts[rs.layoutsUsed]
		rs.layoutsUsed++
	}
	*kept = l
	return kept
}

// allocRanks is n integers that nobody else uses until the operation ends.
func (rs *roundArena) allocRanks(n int) []int {
	if cap(rs.ranks)-len(rs.ranks) < n {
		rs.ranks = make([]int, 0, 2*(cap(rs.ranks)+n)) // older lists keep their memory
	}
	at := len(rs.ranks)
	rs.ranks = rs.ranks[:at+n]
	return rs.ranks[at : at+n : at+n]
}

// clear forgets the Rounds but for the first few that are kept.
func (rs *roundArena) clear(kept int) {
	clear(rs.rounds[kept:rs.roundsUsed])
	clear(rs.layouts[:rs.layoutsUsed])
	rs.roundsUsed, rs.layoutsUsed, rs.ranks = kept, 0, rs.ranks[:0]
}
