package verbs

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// A deviceInfo holds what the system reports about a device.
type deviceInfo struct {
	name  string
	err   error // why it cannot be opened; nil if it can
	ports []portInfo
}

// A portInfo holds what the system reports about a port.
type portInfo struct {
	number int
	active bool
	mtu    uint8 // as enum ibv_mtu
	lid    uint16
	gids   []gidInfo
}

// A gidInfo is one entry of a port's table of GIDs.
type gidInfo struct {
	index int
	gid   [16]byte
	roce  int // version; 0: InfiniBand
}

// family returns the family of the address from which a GID is made.
func (g gidInfo) family() string {
	if netip.AddrFrom16(g.gid).Is4In6() {
		return "ipv4"
	}
	return "ipv6"
}

func (g gidInfo) String() string {
	kind := "InfiniBand"
	if g.roce > 0 {
		kind = fmt.Sprintf("RoCE v%d", g.roce)
	}
	return fmt.Sprintf("GID %d, %v, %s", g.index, netip.AddrFrom16(g.gid).Unmap(), kind)
}

// A selection is the device, port and GID that queue pairs use.
type selection struct {
	device int // index of the device in the list
	name   string
	port   portInfo
	gid    gidInfo
}

func (p *selection) String() string {
	lid := ""
	if p.gid.roce == 0 {
		lid = fmt.Sprintf(", LID %d", p.port.lid)
	}
	return fmt.Sprintf("%s port %d, %v%s, MTU %d", p.name, p.port.number, p.gid, lid, 128<<p.port.mtu)
}

// network names the network of a device. Two devices can reach each other if the names of their
// networks are equal. A RoCE v2 address can be routed like IP. Any other address belongs to one
// subnet, whose prefix is the first half of the GID.
func (p *selection) network() string {
	switch {
	case p.gid.roce == 2 && p.gid.family() == "ipv4":
		return "roce2-ipv4"
	case p.gid.roce == 2 && !netip.AddrFrom16(p.gid.gid).IsLinkLocalUnicast():
		return "roce2-ipv6"
	case p.gid.roce > 0:
		return fmt.Sprintf("roce%d-%s-%x", p.gid.roce, p.gid.family(), p.gid.gid[:8])
	}
	return fmt.Sprintf("infiniband-%x", p.gid.gid[:8])
}

// choose selects the first device and port that the config allows. If the config lists several
// ports, it selects the port of this process. A port must be active and have an allowed GID; choose
// selects the best allowed GID. The result why has a line for each device, port and GID. Each line
// says whether the item is selected, or why not. The error lists all of these lines.
func choose(devices []deviceInfo, w *config) (best *selection, why []string, err error) {
	// If the config lists several ports, ownPort returns a config for one of them.
	w, why = w.ownPort()
	explain := func(format string, args ...any) { why = append(why, fmt.Sprintf(format, args...)) }
	for i, d := range devices {
		if w.device != "" && w.device != d.name {
			explain("%s: want device %q", d.name, w.device)
			continue
		}
		if d.err != nil {
			explain("%s: %v", d.name, d.err)
			continue
		}
		for _, p := range d.ports {
			g, reason := w.bestGID(p)
			switch {
			case reason != "":
				explain("%s port %d: %s", d.name, p.number, reason)
			// Each device and port gets a line, even after the choice, because users read the
			// output of Explain to see which devices, ports and GIDs exist.
			case best != nil:
				explain("%s port %d: usable, but %s precedes it", d.name, p.number, best.name)
			default:
				best = &selection{device: i, name: d.name, port: p, gid: g}
				explain("%v: selected", best)
				for _, other := range p.gids {
					if other.index != g.index {
						explain("%s port %d, %v: %s", d.name, p.number, other, w.whyNot(other))
					}
				}
			}
		}
	}
	switch {
	case best != nil:
		return best, why, nil
	// Without a device, the result why has no line about a device. So the error itself names the
	// remedy.
	case len(devices) == 0:
		return nil, why, errors.New("this host has no RDMA device; check that its driver is loaded (rdma link, ibv_devices), or make one of an Ethernet interface: rdma link add rxe0 type rxe netdev eth0")
	}
	return nil, why, errors.New(strings.Join(why, "; "))
}

// bestGID returns the best allowed GID of a port, or the reason why there is none.
func (w *config) bestGID(p portInfo) (best gidInfo, reason string) {
	switch {
	case w.port != 0 && w.port != p.number:
		return best, fmt.Sprintf("want port %d", w.port)
	case !p.active:
		return best, "not active; bring its network interface up (ip link), or connect its cable"
	case len(p.gids) == 0:
		return best, "no GID; give its network interface an address"
	}
	bestScore := 0
	for _, g := range p.gids {
		if n := w.score(g); n > bestScore {
			best, bestScore = g, n
		}
	}
	if bestScore == 0 {
		return best, fmt.Sprintf("none of its %d GIDs has the index, family and version that %[2]sGID_INDEX, %[2]sGID_FAMILY and %[2]sROCE_VERSION demand", len(p.gids), ourPrefix)
	}
	return best, ""
}

// maxWaiters is the maximum number of goroutines that wait for the events of a device.
const maxWaiters = 64

// leastLoaded returns the first waiter with the fewest completion queues.
func leastLoaded(queues []int) (waiter int) {
	for i, n := range queues {
		if n < queues[waiter] {
			waiter = i
		}
	}
	return waiter
}

// score ranks GIDs; 0 means not allowed. RoCE version 2 counts most, because it can be routed. Next
// is IPv4, because most networks are set up with it. A link-local address counts least, because it
// is valid on only one link.
func (w *config) score(g gidInfo) int {
	if w.excludes(g) != "" {
		return 0
	}
	// Every allowed GID is better than none.
	n := 1
	if g.roce == 2 {
		n += 4
	}
	if g.family() == "ipv4" {
		n += 2
	} else if !netip.AddrFrom16(g.gid).IsLinkLocalUnicast() {
		n++
	}
	return n
}

// excludes returns the reason why the config does not allow g; "" if it does.
func (w *config) excludes(g gidInfo) string {
	switch {
	case w.gid >= 0 && w.gid != g.index:
		return fmt.Sprintf("want index %d", w.gid)
	case w.family != "" && w.family != g.family():
		return "want family " + w.family
	case w.roce != 0 && g.roce != 0 && w.roce != g.roce:
		return fmt.Sprintf("want RoCE version %d", w.roce)
	}
	return ""
}

// whyNot returns the reason why g is not selected.
func (w *config) whyNot(g gidInfo) string {
	if not := w.excludes(g); not != "" {
		return not
	}
	return "the selected one is better, or precedes it"
}
