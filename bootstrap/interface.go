package bootstrap

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/tutti-go/tutti/internal/route"
	"github.com/tutti-go/tutti/internal/vars"
)

// A netInterface is a network interface of this machine that is up. Its addresses do not include
// IPv6 link-local addresses, because other machines cannot use them.
type netInterface struct {
	name  string
	addrs []netip.Addr
}

// netInterfaces returns the interfaces of this machine.
func netInterfaces() ([]netInterface, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var up []netInterface
	for _, i := range all {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue // the interface has gone meanwhile
		}
		n := netInterface{name: i.Name}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && !(p.Addr().Is6() && p.Addr().IsLinkLocalUnicast()) {
				n.addrs = append(n.addrs, p.Addr().Unmap())
			}
		}
		up = append(up, n)
	}
	return up, nil
}

// placement reads TUTTI_INTERFACE and TUTTI_ADVERTISE, which determine at which address the other
// ranks reach this rank. In a job with a list of all addresses it refuses both, because the list
// determines that already.
func (f *finder) placement(j *Job) error {
	for _, name := range []string{vars.Interface, vars.Advertise} {
		if text, ok := f.get(name); ok && len(j.Peers) > 0 {
			return badVariable(j.Rank, name, text, "contradicts "+j.Source+", where each rank has its address",
				"unset it, or change the list")
		}
	}
	if text, ok := f.get(vars.Advertise); ok {
		host, port, err := splitListen(text)
		if err == nil {
			err = checkAddr(net.JoinHostPort(host, cmp.Or(port, "1")))
		}
		if err != nil {
			return badVariable(j.Rank, vars.Advertise, text, "is no address", "give host or host:port, at which the other ranks reach this rank")
		}
		j.advertise = text
	}
	text, ok := f.get(vars.Interface)
	if !ok {
		return nil
	}
	all, err := f.interfaces()
	if err != nil {
		return refuse(j.Rank, "%s=%q: this machine's interfaces cannot be listed: %w", vars.Interface, text, err)
	}
	if j.selected, err = selectAddrs(text, all); err != nil {
		return badVariable(j.Rank, vars.Interface, text, err.Error(),
			"list the first letters of names, or networks such as 10.0.0.0/8, separated by commas; = before the list takes whole names, and ^ takes all other interfaces")
	}
	if len(j.selected) == 0 {
		return badVariable(j.Rank, vars.Interface, text, "selects no address of this machine", "choose from "+describe(all))
	}
	return nil
}

// selectAddrs returns the addresses that the value of TUTTI_INTERFACE selects. The syntax is that
// of NCCL_SOCKET_IFNAME, extended by networks:
//
//	eth,ib         interfaces whose names begin with eth, then those with ib
//	=eth0,ib0      the interfaces of these names
//	10.0.0.0/8     addresses of this network
//	^docker,lo     all others; loopback comes last
//	^=docker0      all but the interface of this name
func selectAddrs(text string, all []netInterface) (chosen []netip.Addr, err error) {
	list, exclude := strings.CutPrefix(text, "^")
	list, whole := strings.CutPrefix(list, "=")
	for item := range strings.SplitSeq(list, ",") {
		item = strings.TrimSpace(item)
		network, err := netip.ParsePrefix(item)
		isNetwork := strings.Contains(item, "/")
		if item == "" || isNetwork && err != nil {
			return nil, fmt.Errorf("has a malformed entry %.40q", item)
		}
		for _, n := range all {
			named := !isNetwork && (n.name == item || !whole && strings.HasPrefix(n.name, item))
			for _, a := range n.addrs {
				if named || isNetwork && network.Contains(a) {
					chosen = append(chosen, a)
				}
			}
		}
	}
	if !exclude {
		return chosen, nil
	}
	var rest, loopback []netip.Addr
	for _, n := range all {
		for _, a := range n.addrs {
			switch {
			case slices.Contains(chosen, a):
			case a.IsLoopback():
				loopback = append(loopback, a)
			default:
				rest = append(rest, a)
			}
		}
	}
	return append(rest, loopback...), nil
}

// describe lists interfaces and their addresses, at most 16, for messages.
func describe(all []netInterface) string {
	var parts []string
	for _, n := range all[:min(len(all), 16)] {
		part := n.name
		for _, a := range n.addrs {
			part += " " + a.String()
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}

// selectedHost returns the selected address that suits the job best. That is the address from which
// Root is reached, or else the first one of the same family, or else the first one. If there is no
// Root, the default route is used in its place. Ranks other than 0 wait until Root's name has an
// address.
func (j *Job) selectedHost(ctx context.Context) (string, error) {
	var near netip.Addr
	var err error
	switch {
	case j.Root == "":
		near, err = route.Default(ctx)
	case j.Rank == 0:
		near, err = route.To(ctx, j.Root)
	default:
		if near, err = addrTowards(ctx, j.Root); err != nil {
			return "", j.lookupError(ctx, err)
		}
	}
	best := j.selected[0]
	if err == nil {
		if slices.Contains(j.selected, near) {
			best = near
		} else if i := slices.IndexFunc(j.selected, func(s netip.Addr) bool { return s.Is4() == near.Is4() }); i >= 0 {
			best = j.selected[i]
		}
	}
	return best.String(), nil
}

// An advertised is a listener that the other ranks reach at an address other than its own. An
// example is a gateway that forwards a port to the listener.
type advertised struct {
	net.Listener
	addr string
}

// advertise returns the listener l with the address that the parameter at gives. If at has no port,
// the port is that of l.
func advertise(l net.Listener, at string) net.Listener {
	host, port, _ := splitListen(at)
	_, own, _ := net.SplitHostPort(l.Addr().String())
	return &advertised{l, net.JoinHostPort(host, cmp.Or(port, own))}
}

// Addr implements net.Listener.
func (a *advertised) Addr() net.Addr { return (*advertisedAddr)(a) }

// An advertisedAddr is the address of an advertised listener. Its host may be a name.
type advertisedAddr advertised

// Network implements net.Addr.
func (*advertisedAddr) Network() string { return "tcp" }

// String implements net.Addr.
func (a *advertisedAddr) String() string { return a.addr }
