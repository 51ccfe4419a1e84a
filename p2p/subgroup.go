package p2p

import "github.com/tutti-go/tutti/topology"

// A subgroup is a subset of a group's members. A Round runs over a subgroup.
type subgroup struct {
	ranks  []int            // the job rank of each member
	rank   int              // this process's index in ranks
	layout *topology.Layout // the hosts that the members run on
	shared *Shared          // the members' shared memory; nil: none
}

// SetLayout sets the hosts that the members run on. All members must call it with equal layouts,
// between two rounds and before SetShared and SetHostShared. Without SetLayout, all members are
// taken to be on one host.
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

// Layout returns the layout of the group, that is, the hosts on which the members run.
func (g *Group) Layout() *topology.Layout { return g.all.layout }

// HasHostShared reports whether the members on this rank's host have shared memory. They have it
// after SetHostShared, or after SetShared if all members are on one host.
func (g *Group) HasHostShared() bool { return g.host.shared != nil || g.singleHost() && g.HasShared() }

// singleHost reports whether all members are on one host.
func (g *Group) singleHost() bool { return g.all.layout.Hosts() == 1 }

// Layout returns the layout of the round's ranks, that is, the hosts on which they run.
func (r *Round) Layout() *topology.Layout { return r.sub.layout }

// DisableShared makes the round use no shared memory. Only one operation of the group at a time may
// use shared memory, so a round that runs concurrently with other rounds must not use it.
// DisableShared must be called before the round's first message.
func (r *Round) DisableShared() {
	r.noShared = true
	r.sub.shared = nil
}

// Host returns a Round over the ranks on this rank's host, in the order of the group's layout. It
// uses the host's shared memory, if there is any.
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

// Among returns a Round over a subset of r's ranks. The parameter l is the layout of the new Round.
// The function pick maps a rank of the new Round to its rank in r. Among returns nil if this rank
// is not in the subset. Two ranks may both be in several such Rounds of one operation, if they use
// these Rounds in the same order. The list of ranks is kept until the operation ends.
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

// An operation over a hierarchy of hosts creates several Rounds, in loops that must not allocate.
// Rounds are therefore values in an arena, which the operation keeps when it is reused.

// A roundArena holds the Rounds of an operation, with their layouts and lists of ranks. It is
// reused with the operation. It has room for a few Rounds and layouts, which need no allocation.
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

// allocRanks returns a slice of n integers for a list of ranks. The slice is valid until the
// operation ends.
func (rs *roundArena) allocRanks(n int) []int {
	if cap(rs.ranks)-len(rs.ranks) < n {
		rs.ranks = make([]int, 0, 2*(cap(rs.ranks)+n)) // older lists keep their memory
	}
	at := len(rs.ranks)
	rs.ranks = rs.ranks[:at+n]
	return rs.ranks[at : at+n : at+n]
}

// clear frees all Rounds, layouts and lists of ranks. It keeps only the first Rounds, whose number
// is the parameter kept.
func (rs *roundArena) clear(kept int) {
	clear(rs.rounds[kept:rs.roundsUsed])
	clear(rs.layouts[:rs.layoutsUsed])
	rs.roundsUsed, rs.layoutsUsed, rs.ranks = kept, 0, rs.ranks[:0]
}
