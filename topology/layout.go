package topology

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/tutti-go/tutti/fault"
)

// A Place says where a rank runs. It holds the name of the rank's host and the name of its rack, of
// at most MaxName bytes each.
type Place struct{ Host, Rack string }

// Check returns fault.Mismatch if a host is in two racks. The error names two of the ranks that
// disagree.
func Check(places []Place) error {
	first := make(map[string]int)
	for rank, p := range places {
		seen, ok := first[p.Host]
		if !ok {
			first[p.Host] = rank
			continue
		}
		if other := places[seen].Rack; other != p.Rack {
			return fault.New(fault.Mismatch, "topology", -1, "rack of host %q: got %q from rank %d and %q from rank %d; give all ranks of a host the same rack",
				p.Host, other, seen, p.Rack, rank)
		}
	}
	return nil
}

// A Layout is the order in which algorithms visit the ranks of a group: rack by rack, host by host.
// The position of a rank is its index in this order. Hosts and racks are numbered in the same
// order. A Layout is immutable, and goroutines may share it.
//
// The layout of one host needs no slices: Flat leaves them nil, and the methods treat nil as one
// host in rank order. So a job on one host needs no memory per rank.
type Layout struct {
	n         int
	order     []int // the rank at each position; nil: positions are ranks
	positions []int // the position of each rank; nil: positions are ranks
	hosts     []int // the first position of each host, followed by n; nil: one host
	hostOf    []int // the host of each position
	racks     []int // the first host of each rack, followed by the number of hosts; nil: one rack
	rackOf    []int // the rack of each host
	names     []Place
}

// Flat returns the layout of n ranks on one host.
func Flat(n int) Layout { return Layout{n: n} }

// New returns the layout of ranks 0, 1, … at the given places. It sorts the ranks by the lowest
// rank of their rack, then by the lowest rank of their host, then by their number. The names of
// hosts and racks do not matter, so renaming a host does not change the order of folds.
func New(places []Place) *Layout {
	n := len(places)
	// The maps hold the lowest rank of each host and of each rack.
	host, rack := make(map[Place]int), make(map[string]int)
	// Iterate downwards, so that the maps finally hold the lowest rank of each host and rack.
	for r := n - 1; r >= 0; r-- {
		host[places[r]], rack[places[r].Rack] = r, r
	}
	l := &Layout{n: n, order: make([]int, n), positions: make([]int, n), hostOf: make([]int, n)}
	for r := range l.order {
		l.order[r] = r
	}
	slices.SortFunc(l.order, func(a, b int) int {
		pa, pb := places[a], places[b]
		return cmp.Or(cmp.Compare(rack[pa.Rack], rack[pb.Rack]), cmp.Compare(host[pa], host[pb]), cmp.Compare(a, b))
	})
	for position, r := range l.order {
		l.positions[r] = position
		p := places[r]
		// A place that differs from the previous place begins a new host, and possibly a new rack.
		if position == 0 || p != l.names[len(l.names)-1] {
			if position == 0 || p.Rack != l.names[len(l.names)-1].Rack {
				l.racks = append(l.racks, len(l.hosts))
			}
			l.hosts = append(l.hosts, position)
			l.rackOf = append(l.rackOf, len(l.racks)-1)
			l.names = append(l.names, p)
		}
		l.hostOf[position] = len(l.hosts) - 1
	}
	l.racks = append(l.racks, len(l.hosts))
	l.hosts = append(l.hosts, n)
	return l
}

// Size returns the number of ranks.
func (l *Layout) Size() int { return l.n }

// Rank returns the rank at a position.
func (l *Layout) Rank(position int) int {
	if l.order == nil {
		return position
	}
	return l.order[position]
}

// Position returns the position of a rank.
func (l *Layout) Position(rank int) int {
	if l.positions == nil {
		return rank
	}
	return l.positions[rank]
}

// Order returns the ranks in order, in a new slice.
func (l *Layout) Order() []int {
	order := make([]int, l.n)
	for position := range order {
		order[position] = l.Rank(position)
	}
	return order
}

// InOrder reports whether the position of every rank is the rank itself.
func (l *Layout) InOrder() bool {
	return l.order == nil || slices.IsSorted(l.order)
}

// Hosts returns the number of hosts.
func (l *Layout) Hosts() int { return max(1, len(l.hosts)-1) }

// Racks returns the number of racks.
func (l *Layout) Racks() int { return max(1, len(l.racks)-1) }

// HostOf returns the host of a rank.
func (l *Layout) HostOf(rank int) int {
	if l.hostOf == nil {
		return 0
	}
	return l.hostOf[l.Position(rank)]
}

// Host returns the positions of a host's ranks as the half-open range [first, end).
func (l *Layout) Host(host int) (first, end int) {
	if l.hosts == nil {
		return 0, l.n
	}
	return l.hosts[host], l.hosts[host+1]
}

// rack returns the hosts of a rack as the half-open range [first, end).
func (l *Layout) rack(rack int) (first, end int) {
	if l.racks == nil {
		return 0, l.Hosts()
	}
	return l.racks[rack], l.racks[rack+1]
}

// rackOfHost returns the rack of a host.
func (l *Layout) rackOfHost(host int) int {
	if l.rackOf == nil {
		return 0
	}
	return l.rackOf[host]
}

// MinRanksPerHost returns the number of ranks on the host with the fewest ranks.
func (l *Layout) MinRanksPerHost() int {
	fewest := l.n
	for h := range l.Hosts() {
		first, end := l.Host(h)
		fewest = min(fewest, end-first)
	}
	return fewest
}

// MaxRanksPerHost returns the number of ranks on the host with the most ranks.
func (l *Layout) MaxRanksPerHost() int {
	most := 0
	for h := range l.Hosts() {
		first, end := l.Host(h)
		most = max(most, end-first)
	}
	return most
}

// HostLayout returns the layout of one rank per host, in the order of hosts. In this layout the
// racks of l are the hosts, because no other boundaries are left.
func (l *Layout) HostLayout() Layout {
	return Layout{n: l.Hosts(), hosts: l.racks, hostOf: l.rackOf}
}

// maxText is the number of bytes after which String cuts its text.
const maxText = 2 << 10

// String lists the ranks in order, by host, with the rack if it has a name: "n0[0 2] n1[1 3]",
// or "a/n0[0 2] b/n1[1 3]". It cuts a long list short.
func (l *Layout) String() string {
	var b strings.Builder
	for h := range l.Hosts() {
		if h > 0 {
			b.WriteByte(' ')
		}
		if b.Len() > maxText {
			fmt.Fprintf(&b, "… %d hosts", l.Hosts())
			break
		}
		if h < len(l.names) {
			if l.names[h].Rack != "" {
				b.WriteString(l.names[h].Rack + "/")
			}
			b.WriteString(l.names[h].Host)
		}
		first, end := l.Host(h)
		ranks := make([]int, 0, end-first)
		for position := first; position < end; position++ {
			ranks = append(ranks, l.Rank(position))
		}
		fmt.Fprint(&b, ranks)
	}
	return b.String()
}
