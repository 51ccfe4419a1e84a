// Package route finds the address of this host from which packets to another host leave. The
// package does not know for what the address is used.
package route

import (
	"context"
	"net"
	"net/netip"
)

// Port is the port that RFC 863 gives to a service that drops all it gets. To needs a port, but sends
// nothing there.
const Port = 9

// To returns the local address of the route to an address, which may begin with a name. It connects a
// datagram socket, which asks the routing table. It sends nothing, except for queries about the name.
func To(ctx context.Context, address string) (netip.Addr, error) {
	c, err := new(net.Dialer).DialContext(ctx, "udp", address)
	if err != nil {
		return netip.Addr{}, err
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

// Default returns the local address of the default route. The addresses for documentation have no
// hosts, so only the default route leads to them.
func Default(ctx context.Context) (netip.Addr, error) {
	addr, err := To(ctx, "192.0.2.1:9")
	if err != nil {
		addr, err = To(ctx, "[2001:db8::1]:9")
	}
	return addr, err
}
