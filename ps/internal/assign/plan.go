package assign

import (
	"cmp"
	"math/bits"
	"slices"
)

// A Copy is a complete copy of a part on a server.
type Copy struct {
	Rank    int
	Index   uint64 // of the last entry of the part's log that the copy has applied
	Primary bool
}

// A Part is a part and the copies that the members report, at most one of each rank.
type Part struct {
	ID     uint64
	Bytes  int64
	Copies []Copy
}

// A Plan is what the servers do after a change of members. First they carry out all Transfers, then
// all Drops. All lists are in the order of IDs, and of ranks for one ID.
type Plan struct {
	Parts     []PlannedPart
	Transfers []Transfer
	Drops     []Drop
	Lost      []uint64 // the IDs of the parts that no server holds
}

// A PlannedPart is a part and the servers that hold it after the plan has been carried out.
type PlannedPart struct {
	ID uint64
	Placement
}

// A Transfer sends the state of a part to a server. It replaces an older copy there.
type Transfer struct {
	ID       uint64
	From, To int
	Bytes    int64
}

// A Drop frees a copy that has moved, or that is one too many.
type Drop struct {
	ID   uint64
	Rank int
}

// A planned is a part while NewPlan decides about it. All lists of servers are in ascending order of
// ranks, but for holders.
type planned struct {
	id       uint64
	bytes    int64
	size     uint64    // in the balance
	reported []*server // with a copy
	current  []*server // with a copy of the highest index; empty if the part is lost
	former   *server   // the primary before the change; nil if it is not in current
	source   *server   // of transfers, except of copies that move
	primary  *server   // after the plan
	holders  []*server // after the plan
	moves    []move
}

// A move replaces a holder.
type move struct{ from, to *server }

// NewPlan plans for the members that are there after a change. The list of parts has all parts that
// were ever declared and are not lost, also those without a copy. Copies on ranks that do not serve
// are ignored.
func NewPlan(members []Member, copies int, parts []Part) Plan {
	b := NewBalance(members, copies)
	all := make([]*planned, len(parts))
	for i, p := range parts {
		all[i] = b.newPlanned(p)
	}
	slices.SortFunc(all, func(x, y *planned) int {
		return cmp.Or(cmp.Compare(y.size, x.size), cmp.Compare(x.id, y.id)) // large parts first
	})
	b.keep(all)
	b.promote(all)
	b.fill(all)
	b.moveToAdded(all)

	slices.SortFunc(all, func(x, y *planned) int { return cmp.Compare(x.id, y.id) })
	var plan Plan
	for _, p := range all {
		plan.add(p)
	}
	return plan
}

// newPlanned finds the copies of a part that are left.
func (b *Balance) newPlanned(part Part) *planned {
	p := &planned{id: part.ID, bytes: part.Bytes, size: weigh(part.Bytes)}
	var highest uint64
	for _, s := range b.servers {
		i := slices.IndexFunc(part.Copies, func(c Copy) bool { return c.Rank == s.Rank })
		if i < 0 {
			continue
		}
		p.reported = append(p.reported, s)
		c := part.Copies[i]
		if c.Index > highest || p.current == nil {
			highest, p.current, p.former = c.Index, nil, nil
		}
		if c.Index == highest {
			p.current = append(p.current, s)
			if c.Primary {
				p.former = s
			}
		}
	}
	return p
}

// keep keeps the copies that are left. If there are too many of a part, older ones are dropped first,
// and then those of the servers with the highest load. There are too many if a further change has
// interrupted a plan between its transfers and its drops.
func (b *Balance) keep(all []*planned) {
	for _, p := range all {
		p.holders = slices.Clone(p.reported)
		for _, s := range p.holders {
			s.total += p.size
		}
	}
	for _, p := range all {
		for len(p.holders) > b.copies {
			from := slices.DeleteFunc(slices.Clone(p.holders), func(s *server) bool { return slices.Contains(p.current, s) })
			if len(from) == 0 {
				from = p.holders
			}
			extra := slices.MaxFunc(from, func(x, y *server) int { return compare(x.total, x, y.total, y) })
			extra.total -= p.size
			p.holders = without(p.holders, extra)
		}
	}
}

// promote finds the primary of each part: the server that was the primary before, or else, of the
// servers with the highest index, the one with the lowest load.
func (b *Balance) promote(all []*planned) {
	for _, p := range all {
		if p.former != nil && slices.Contains(p.holders, p.former) {
			p.primary = p.former
			p.primary.primary += p.size
		}
	}
	for _, p := range all {
		if p.primary == nil && len(p.current) > 0 {
			p.choosePrimary(slices.DeleteFunc(slices.Clone(p.holders), func(s *server) bool { return !slices.Contains(p.current, s) }))
		}
		p.source = p.primary
	}
}

// choosePrimary makes the server the primary whose load is lowest afterwards.
func (p *planned) choosePrimary(from []*server) {
	p.primary = slices.MinFunc(from, func(x, y *server) int { return compare(x.primary+p.size, x, y.primary+p.size, y) })
	p.primary.primary += p.size
}

// fill finds servers for the copies that are missing.
func (b *Balance) fill(all []*planned) {
	for _, p := range all {
		for p.source != nil && len(p.holders) < b.copies {
			s := b.pick(p.holders, p.size, (*server).totalBytes)
			s.total += p.size
			p.holders = append(p.holders, s)
		}
	}
}

// moveToAdded moves copies to the servers that were added. Then it chooses the primaries of all
// parts that these servers hold, which costs no transfers.
func (b *Balance) moveToAdded(all []*planned) {
	isAdded := func(s *server) bool { return s.Added }
	added := slices.DeleteFunc(slices.Clone(b.servers), func(s *server) bool { return !s.Added })
	before := slices.DeleteFunc(slices.Clone(b.servers), isAdded)
	for len(added) > 0 {
		to := slices.MinFunc(added, func(x, y *server) int { return compare(x.total, x, y.total, y) })
		slices.SortStableFunc(before, func(x, y *server) int { return compare(y.total, y, x.total, x) })
		if !slices.ContainsFunc(before, func(from *server) bool { return b.moveOne(all, from, to) }) {
			added = without(added, to)
		}
	}
	for _, p := range all {
		if slices.ContainsFunc(p.holders, isAdded) {
			p.primary.primary -= p.size
			slices.SortFunc(p.holders, func(x, y *server) int { return cmp.Compare(x.Rank, y.Rank) })
			p.choosePrimary(p.holders)
		}
	}
}

// moveOne moves one copy to a server that has less than its share, if its load stays lower than the
// load of the other server was. It prefers the largest part within the share, and then the smallest
// part.
func (b *Balance) moveOne(all []*planned, from, to *server) bool {
	share := b.share(to)
	if to.total >= share {
		return false
	}
	var best *planned
	for _, p := range all {
		if !p.mayMove(from, to) || !less(to.total+p.size, to.weight, from.total, from.weight) {
			continue
		}
		best = p
		if to.total+p.size <= share {
			break
		}
	}
	if best == nil {
		return false
	}
	from.total -= best.size
	to.total += best.size
	best.holders[slices.Index(best.holders, from)] = to
	best.moves = append(best.moves, move{from, to})
	return true
}

// mayMove reports whether a copy may move. Only a copy that needs no transfer may, and the copies
// must not get onto fewer hosts.
func (p *planned) mayMove(from, to *server) bool {
	if !slices.Contains(p.current, from) || !slices.Contains(p.holders, from) || slices.Contains(p.holders, to) {
		return false
	}
	shared := func(with *server) bool {
		return slices.ContainsFunc(p.holders, func(s *server) bool { return s != from && s.Host == with.Host })
	}
	return !shared(to) || shared(from)
}

// share returns the bytes of all copies that the server would hold in a perfect balance.
func (b *Balance) share(s *server) uint64 {
	var total, weights uint64
	for _, s := range b.servers {
		total += s.total
		weights += s.weight
	}
	hi, lo := bits.Mul64(total, s.weight)
	share, _ := bits.Div64(hi, lo, weights)
	return share
}

// add adds a part to the plan.
func (plan *Plan) add(p *planned) {
	if p.source == nil {
		plan.Lost = append(plan.Lost, p.id)
		return
	}
	pl := placement(p.primary, p.holders)
	plan.Parts = append(plan.Parts, PlannedPart{p.id, pl})
	slices.SortFunc(p.holders, func(x, y *server) int { return cmp.Compare(x.Rank, y.Rank) })
	for _, to := range p.holders {
		if slices.Contains(p.current, to) {
			continue
		}
		from := p.source
		if i := slices.IndexFunc(p.moves, func(m move) bool { return m.to == to }); i >= 0 {
			from = p.moves[i].from
		}
		plan.Transfers = append(plan.Transfers, Transfer{p.id, from.Rank, to.Rank, p.bytes})
	}
	for _, s := range p.reported {
		if !slices.Contains(p.holders, s) {
			plan.Drops = append(plan.Drops, Drop{p.id, s.Rank})
		}
	}
}

// compare compares the loads a of x and b of y, relative to the servers' shares.
func compare(a uint64, x *server, b uint64, y *server) int {
	switch {
	case less(a, x.weight, b, y.weight):
		return -1
	case less(b, y.weight, a, x.weight):
		return 1
	}
	return 0
}

// without returns a copy of the servers without one of them.
func without(servers []*server, gone *server) []*server {
	return slices.DeleteFunc(slices.Clone(servers), func(s *server) bool { return s == gone })
}
