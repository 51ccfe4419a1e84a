// Package pending is for listeners that bound connections whose peers have proven nothing. It
// chooses the connection that is closed to make room for another connection, and provides a log
// that a flood of connections cannot fill. It does not know how a peer proves anything.
package pending

import (
	"iter"
	"net"
	"net/netip"
	"time"
)

// Source returns the source of a connection: an IPv4 address, or the /64 prefix of an IPv6 address,
// because a host may use any address of its prefix.
func Source(addr net.Addr) netip.Prefix {
	ta, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	bits, ip := 64, ta.AddrPort().Addr().Unmap()
	if ip.Is4() {
		bits = 32
	}
	prefix, _ := ip.Prefix(bits) // fails for invalid addresses, which all count as one source
	return prefix
}

// Victim returns the connection to evict when there is no room for another connection, or the zero
// C if all is empty. The parameter about returns the source of a connection, and the time until
// which the connection is protected from eviction. Victim selects the source that has the most
// connections, and from that source the connection whose protection ends first. So connections from
// one host evict each other, and not a connection from another host.
func Victim[C comparable](all iter.Seq[C], about func(C) (netip.Prefix, time.Time)) (victim C) {
	count := make(map[netip.Prefix]int)
	for c := range all {
		source, _ := about(c)
		count[source]++
	}
	var most int
	var first time.Time
	for c := range all {
		source, safe := about(c)
		if n := count[source]; n > most || n == most && safe.Before(first) {
			victim, most, first = c, n, safe
		}
	}
	return victim
}
