package topology

// A Walk numbers the ranks of a layout from a root: node 0 is the root. The root's host comes
// first, then the other hosts of its rack, then the other racks. At each level, the walk begins
// with the root's rack, host or rank, and wraps around. Every host and every rack is a run of
// nodes, so a tree over nodes can enter each of them exactly once.
//
// With ranks 0 and 1 on host n0 and ranks 2 and 3 on n1, both in rack a, and ranks 4 and 5 on
// n2 in rack b, the walk from rank 3 is
//
//	node  0  1  2  3  4  5
//	rank  3  2  0  1  4  5
//	host  n1 n1 n0 n0 n2 n2
//	rack  a  a  a  a  b  b
//
// If the root is at position 0, node numbers are positions.
type Walk struct {
	l    *Layout
	root int // the root's position
	host int // the root's host
	rack int // the root's rack
}

// From returns the walk from a rank.
func (l *Layout) From(rank int) Walk {
	host := l.HostOf(rank)
	return Walk{l: l, root: l.Position(rank), host: host, rack: l.rackOfHost(host)}
}

// Rank returns the rank of a node. It is the inverse of Node, and works level by level: it rotates
// the racks, then the hosts within the root's rack, then the ranks on the root's host. Only the
// root's rack and host need the inner rotations, because the walk enters all other racks and hosts
// at their first host and rank.
func (w Walk) Rank(node int) int {
	// Rotate the racks, so that the root's rack comes first.
	rackFirst, rackEnd := w.positions(w.rack)
	position := (node + rackFirst) % w.l.n
	hostFirst, hostEnd := w.l.Host(w.host)
	if position >= rackFirst && position < rackEnd {
		position = rackFirst + mod(position-rackFirst+hostFirst-rackFirst, rackEnd-rackFirst)
	}
	if position >= hostFirst && position < hostEnd {
		position = hostFirst + mod(position-hostFirst+w.root-hostFirst, hostEnd-hostFirst)
	}
	return w.l.Rank(position)
}

// Node returns the node of a rank.
func (w Walk) Node(rank int) int {
	rackFirst, rackEnd := w.positions(w.rack)
	hostFirst, hostEnd := w.l.Host(w.host)
	position := w.l.Position(rank)
	if position >= hostFirst && position < hostEnd {
		position = hostFirst + mod(position-w.root, hostEnd-hostFirst)
	}
	if position >= rackFirst && position < rackEnd {
		position = rackFirst + mod(position-hostFirst, rackEnd-rackFirst)
	}
	return mod(position-rackFirst, w.l.n)
}

// Coordinates locate a node: its rack in the walk, its host in that rack, and its index on that
// host.
type Coordinates struct{ Rack, Host, Local int }

// Coordinates returns the coordinates of a rank.
func (w Walk) Coordinates(rank int) Coordinates {
	host := w.l.HostOf(rank)
	rack := w.l.rackOfHost(host)
	first, end := w.l.rack(rack)
	// In every rack except the root's rack, the walk begins with the first host of the rack.
	s := Coordinates{Rack: mod(rack-w.rack, w.l.Racks()), Host: host - first}
	if s.Rack == 0 {
		s.Host = mod(host-w.host, end-first)
	}
	s.Local = w.Node(rank) - w.HostStart(s.Rack, s.Host)
	return s
}

// RackStart returns the first node of a rack of the walk. For rack Racks() it returns the
// number of nodes.
func (w Walk) RackStart(rack int) int {
	if rack == w.l.Racks() {
		return w.l.n
	}
	first, _ := w.positions((w.rack + rack) % w.l.Racks())
	from, _ := w.positions(w.rack)
	return mod(first-from, w.l.n)
}

// HostStart returns the first node of a host in a rack of the walk. For the number after the rack's
// last host, it returns the first node of the next rack.
func (w Walk) HostStart(rack, host int) int {
	first, end := w.l.rack((w.rack + rack) % w.l.Racks())
	if host == end-first {
		return w.RackStart(rack + 1)
	}
	if rack > 0 {
		position, _ := w.l.Host(first + host)
		from, _ := w.positions(w.rack)
		return mod(position-from, w.l.n)
	}
	position, _ := w.l.Host(first + (w.host-first+host)%(end-first))
	from, _ := w.l.Host(w.host)
	rackFirst, rackEnd := w.positions(w.rack)
	return mod(position-from, rackEnd-rackFirst)
}

// HostsOf returns the number of hosts in a rack of the walk.
func (w Walk) HostsOf(rack int) int {
	first, end := w.l.rack((w.rack + rack) % w.l.Racks())
	return end - first
}

// Racks returns the number of racks.
func (w Walk) Racks() int { return w.l.Racks() }

// positions returns the positions of a rack of the layout.
func (w Walk) positions(rack int) (first, end int) {
	from, to := w.l.rack(rack)
	first, _ = w.l.Host(from)
	_, end = w.l.Host(to - 1)
	return first, end
}

// mod returns the remainder of a divided by n. The result is never negative.
func mod(a, n int) int { return (a%n + n) % n }
