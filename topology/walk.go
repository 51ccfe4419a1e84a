package topology

// A Walk numbers the ranks of a layout from a root on: node 0 is the root. Its
// host comes first, then the other hosts of its rack, then the other racks; at
// each level the walk begins at the root's and goes on around the order. Every
// host and every rack is a run of nodes, so a tree over nodes can enter each once.
//
// From place 0 nodes are places.
type Walk struct {
	l    *Layout
	root int // the root's place
	host int // the root's host
	rack int // the root's rack
}

// From is the walk from a rank on.
func (l *Layout) From(rank int) Walk {
	host := l.HostOf(rank)
	return Walk{l: l, root: l.Place(rank), host: host, rack: l.rackOfHost(host)}
}

// Rank is a node's rank.
func (w Walk) Rank(node int) int {
	rackFirst, rackEnd := w.places(w.rack)
	place := (node + rackFirst) % w.l.n
	hostFirst, hostEnd := w.l.Host(w.host)
	if place >= rackFirst && place < rackEnd {
		place = rackFirst + mod(place-rackFirst+hostFirst-rackFirst, rackEnd-rackFirst)
	}
	if place >= hostFirst && place < hostEnd {
		place = hostFirst + mod(place-hostFirst+w.root-hostFirst, hostEnd-hostFirst)
	}
	return w.l.Rank(place)
}

// Node is a rank's node.
func (w Walk) Node(rank int) int {
	rackFirst, rackEnd := w.places(w.rack)
	hostFirst, hostEnd := w.l.Host(w.host)
	place := w.l.Place(rank)
	if place >= hostFirst && place < hostEnd {
		place = hostFirst + mod(place-w.root, hostEnd-hostFirst)
	}
	if place >= rackFirst && place < rackEnd {
		place = rackFirst + mod(place-hostFirst, rackEnd-rackFirst)
	}
	return mod(place-rackFirst, w.l.n)
}

// A Spot is where a node stands: which rack of the walk, which host of that rack,
// and which node of that host.
type Spot struct{ Rack, Host, Local int }

// Spot is a rank's spot.
func (w Walk) Spot(rank int) Spot {
	host := w.l.HostOf(rank)
	rack := w.l.rackOfHost(host)
	first, end := w.l.rack(rack)
	s := Spot{Rack: mod(rack-w.rack, w.l.Racks()), Host: host - first}
	if s.Rack == 0 {
		s.Host = mod(host-w.host, end-first)
	}
	s.Local = w.Node(rank) - w.HostStart(s.Rack, s.Host)
	return s
}

// RackStart is the first node of a rack of the walk; that of the one after the
// last is the number of nodes.
func (w Walk) RackStart(rack int) int {
	if rack == w.l.Racks() {
		return w.l.n
	}
	first, _ := w.places((w.rack + rack) % w.l.Racks())
	from, _ := w.places(w.rack)
	return mod(first-from, w.l.n)
}

// HostStart is the first node of a host of a rack of the walk; that of the one
// after the rack's last is the next rack's.
func (w Walk) HostStart(rack, host int) int {
	first, end := w.l.rack((w.rack + rack) % w.l.Racks())
	if host == end-first {
		return w.RackStart(rack + 1)
	}
	if rack > 0 {
		place, _ := w.l.Host(first + host)
		from, _ := w.places(w.rack)
		return mod(place-from, w.l.n)
	}
	place, _ := w.l.Host(first + (w.host-first+host)%(end-first))
	from, _ := w.l.Host(w.host)
	rackFirst, rackEnd := w.places(w.rack)
	return mod(place-from, rackEnd-rackFirst)
}

// HostsOf is how many hosts a rack of the walk has.
func (w Walk) HostsOf(rack int) int {
	first, end := w.l.rack((w.rack + rack) % w.l.Racks())
	return end - first
}

// Racks is how many racks the walk has.
func (w Walk) Racks() int { return w.l.Racks() }

// places is the places of a rack of the layout.
func (w Walk) places(rack int) (first, end int) {
	from, to := w.l.rack(rack)
	first, _ = w.l.Host(from)
	_, end = w.l.Host(to - 1)
	return first, end
}

// mod is a modulo n, never negative.
func mod(a, n int) int { return (a%n + n) % n }
