package p2p

import "github.com/tutti-go/tutti/topology"

// A subgroup is some members of a group, over whose ranks a Round runs.
type subgroup struct {
	ranks  []int            // the job's rank of each
	rank   int              // this process's index in ranks
	layout *topology.Layout // where they run
	shared *Shared          // memory that they have in common; nil: none
}

// SetLayout says on which hosts the members run, in the order of their ranks. All members call it
// with equal layouts, before the group gets shared memory and between two rounds. Without it all
// are on one host.
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

// Layout returns where the members run.
func (g *Group) Layout() *topology.Layout { return g.all.layout }

// HasHostShared reports whether the members on this rank's host have shared memory: of their own,
// or because the host has all members.
func (g *Group) HasHostShared() bool { return g.host.shared != nil || g.singleHost() && g.HasShared() }

// singleHost reports whether all members are on one host.
func (g *Group) singleHost() bool { return g.all.layout.Hosts() == 1 }

// Layout returns where the round's ranks run.
func (r *Round) Layout() *topology.Layout { return r.sub.layout }

// DisableShared lets the round run concurrently with others of the group's: it uses no shared
// memory, which only one operation at a time may use. It comes before the round's first message.
func (r *Round) DisableShared() {
	r.noShared = true
	r.sub.shared = nil
}

// Host returns the round over the ranks of this rank's host, in the order of the group's layout,
// with the memory that they share.
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

// Among returns the round over some of r's ranks, which run as l says: pick(i) is the rank in r of
// the one with rank i there. It returns nil when this rank is none of them. Two ranks may be
// together in several such rounds of one operation, if both use them in the same order. It takes a
// few integers, which are kept until the operation ends.
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

// An operation over a hierarchy of hosts has a Round per level and rank, in loops that must not
// allocate. So Rounds are values in an arena that the operation keeps over its reuse.

// A roundArena holds the Rounds of an operation, with their layouts and lists of ranks. It is
// reused, so that the first few of each cost no allocation.
type roundArena struct {
	rounds      [4]Round
	layouts     [4]topology.Layout
	roundsUsed  int
	layoutsUsed int
	ranks       []int // the lists of allocRanks, one after the other
}

// round returns a Round of the operation over a subgroup.
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

// allocLayout returns a copy of l that lives as long as the operation.
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

// allocRanks returns n integers that nobody else uses until the operation ends.
func (rs *roundArena) allocRanks(n int) []int {
	if cap(rs.ranks)-len(rs.ranks) < n {
		rs.ranks = make([]int, 0, 2*(cap(rs.ranks)+n)) // older lists keep their memory
	}
	at := len(rs.ranks)
	rs.ranks = rs.ranks[:at+n]
	return rs.ranks[at : at+n : at+n]
}

// clear forgets all Rounds but the first kept ones.
func (rs *roundArena) clear(kept int) {
	clear(rs.rounds[kept:rs.roundsUsed])
	clear(rs.layouts[:rs.layoutsUsed])
	rs.roundsUsed, rs.layoutsUsed, rs.ranks = kept, 0, rs.ranks[:0]
}
