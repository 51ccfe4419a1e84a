package assign

import (
	"cmp"
	"math/bits"
	"slices"
	"strconv"
)

// A Member is a rank of the job.
type Member struct {
	Rank   int
	Host   string
	Works  bool
	Serves bool
	Added  bool // the rank serves, and no plan that includes it has been carried out yet
}

// A Placement is the servers of a part, as ranks.
type Placement struct {
	Primary  int
	Replicas []int // in ascending order
}

// A Balance assigns parts to servers. It is not safe for concurrent use.
type Balance struct {
	servers []*server // in ascending order of ranks
	copies  int       // of each part
}

// A server is a member that serves, and what it holds.
type server struct {
	Member
	weight  uint64 // its share is weight over the weights of all servers
	primary uint64 // bytes of the parts of which it is the primary
	total   uint64 // bytes of all its copies
}

// NewBalance returns a Balance without parts, for parts with the given number of copies. At least
// one member must serve.
func NewBalance(members []Member, copies int) *Balance {
	b := &Balance{copies: max(1, copies)}
	host := hosts(members)
	works, serving := map[string]bool{}, map[string]uint64{}
	for _, m := range members {
		works[host(m)] = works[host(m)] || m.Works
		if m.Serves {
			serving[host(m)]++
			b.servers = append(b.servers, &server{Member: m})
		}
	}
	slices.SortFunc(b.servers, func(x, y *server) int { return cmp.Compare(x.Rank, y.Rank) })
	b.copies = min(b.copies, len(b.servers))

	var n, k uint64
	for h, w := range works {
		if w {
			n++
		} else if serving[h] > 0 {
			k++
		}
	}
	withWorkers, only := shares(n, k)
	for _, s := range b.servers {
		h := host(s.Member)
		share := only
		if works[h] {
			share = withWorkers
		}
		s.weight = share << 20 / serving[h]
	}
	return b
}

// hosts returns the function that names the host of a member. If all members are on one host, each
// rank counts as a host of its own.
func hosts(members []Member) func(Member) string {
	one := true
	for _, m := range members {
		one = one && m.Host == members[0].Host
	}
	if one {
		return func(m Member) string { return strconv.Itoa(m.Rank) }
	}
	return func(m Member) string { return m.Host }
}

// shares returns the numerators of the shares of a host with workers, and of a host that only
// serves, for n and k such hosts. The denominator is the same for both.
func shares(n, k uint64) (withWorkers, only uint64) {
	if k >= n {
		return 0, 1
	}
	return n - k, 2 * (n - 1)
}

// Assign assigns parts of the given sizes in bytes. The result has the same order. Later calls take
// these parts into account.
func (b *Balance) Assign(bytes []int64) []Placement {
	order := make([]int, len(bytes))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(bytes[j], bytes[i]) })
	placements := make([]Placement, len(bytes))
	for _, i := range order {
		size := weigh(bytes[i])
		holders := []*server{b.pick(nil, size, (*server).primaryBytes)}
		holders[0].total += size
		for len(holders) < b.copies {
			s := b.pick(holders, size, (*server).totalBytes)
			s.total += size
			holders = append(holders, s)
		}
		holders[0].primary += size
		placements[i] = placement(holders[0], holders)
	}
	return placements
}

// Add accounts for a part that has servers already. A lead calls it for each part of the registry
// that it takes over. A rank that does not serve is ignored.
func (b *Balance) Add(p Placement, bytes int64) {
	for _, s := range b.servers {
		if s.Rank == p.Primary {
			s.primary += weigh(bytes)
		}
		if s.Rank == p.Primary || slices.Contains(p.Replicas, s.Rank) {
			s.total += weigh(bytes)
		}
	}
}

// weigh returns the size of a part in the balance. Empty parts count, so that they are spread, too.
func weigh(bytes int64) uint64 { return uint64(max(1, bytes)) }

func (s *server) primaryBytes() uint64 { return s.primary }
func (s *server) totalBytes() uint64   { return s.total }

// pick returns the server for a further copy of a part: one on another host than the holders, if
// there is one, and among these the one whose load is lowest after it has got the part.
func (b *Balance) pick(holders []*server, size uint64, load func(*server) uint64) *server {
	var best *server
	var bestSeparate bool
	for _, s := range b.servers {
		if slices.Contains(holders, s) {
			continue
		}
		separate := !slices.ContainsFunc(holders, func(h *server) bool { return h.Host == s.Host })
		if best == nil || separate && !bestSeparate ||
			separate == bestSeparate && less(load(s)+size, s.weight, load(best)+size, best.weight) {
			best, bestSeparate = s, separate
		}
	}
	return best
}

// less reports whether a/wa < b/wb. A positive number over 0 is infinite.
func less(a, wa, b, wb uint64) bool {
	ahi, alo := bits.Mul64(a, wb)
	bhi, blo := bits.Mul64(b, wa)
	return ahi < bhi || ahi == bhi && alo < blo
}

// placement returns the Placement of a part with these holders.
func placement(primary *server, holders []*server) Placement {
	p := Placement{Primary: primary.Rank}
	for _, s := range holders {
		if s != primary {
			p.Replicas = append(p.Replicas, s.Rank)
		}
	}
	slices.Sort(p.Replicas)
	return p
}
