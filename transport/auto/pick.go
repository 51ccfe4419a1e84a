package auto

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/memory"
	"github.com/tutti-go/tutti/transport/shm"
	"github.com/tutti-go/tutti/transport/tcp"
)

// A choice is a wire, the peer's address on it, and the reason for the choice. An empty kind means
// that no wire reaches the peer.
type choice struct{ kind, addr, why string }

// pick chooses the wire to a peer's address. The choice depends only on that address, this rank's
// Hub and this rank's host. pick has no side effects and makes no connection. So Explain and Dial
// agree, and both ranks of a pair agree.
func (p *Picker) pick(addr string) choice {
	if len(addr) > transport.MaxAddr {
		return choice{why: fmt.Sprintf("address: got %d bytes, want at most %d", len(addr), transport.MaxAddr)}
	}
	if addr != "" && !strings.Contains(addr, "=") {
		return choice{tcp.Name, addr, "a bare address"}
	}
	wires, err := parse(addr)
	if err != nil {
		return choice{why: err.Error()}
	}
	if hub, inHub, offered := strings.Cut(wires[memory.Name], "/"); offered && p.memory != nil && hub == p.hub {
		return choice{memory.Name, inHub, "the same process"}
	}
	why := p.whyNotShm(wires[shm.Name])
	if refused, ok := p.refused.Load(wires[shm.Name]); ok && why == "" {
		why = refused.(string)
	}
	if why == "" {
		return choice{shm.Name, wires[shm.Name], "the same host"}
	}
	if p.name == shm.Name {
		return choice{why: why + ", and shm is asked for"}
	}
	a := wires[tcp.Name]
	not := p.whyNotVerbs(wires[verbsName])
	switch {
	case a != "" && not == "":
		return choice{verbsName, a, why + ", and both have RDMA devices: " + wires[verbsName]}
	case a != "" && p.noVerbs+p.network != "":
		return choice{tcp.Name, a, why + "; " + not}
	case a != "":
		return choice{tcp.Name, a, why}
	}
	return choice{why: why + ", and there is no tcp"}
}

// whyNotShm returns the reason why shm is not used for this address, or "" if it is used.
func (p *Picker) whyNotShm(addr string) string {
	if why := p.noShm.Load(); why != nil {
		return *why
	}
	if addr == "" {
		return "the peer does not offer shm"
	}
	_, why := p.shm.Reaches(addr)
	return why
}

// whyNotVerbs returns the reason why verbs is not used for a peer on this network, or "" if it is
// used.
func (p *Picker) whyNotVerbs(network string) string {
	switch {
	case p.verbs == nil:
		return "no verbs: " + p.noVerbs
	case network == "":
		return "no verbs: the peer does not offer it; run verbsinfo on its host"
	case network != p.network:
		return fmt.Sprintf("no verbs: this rank's device is on %s, the peer's on %s", p.network, network)
	}
	return ""
}

// upgrade opens the hardware of the program's Upgrader, if there is one. A failure is not an error
// here, because the user has not asked for the hardware by name. Explain gives the reason.
//
// Under TLS, which is the default between hosts, the hardware is not used, because RDMA does not
// encrypt. A user who needs no encryption can select verbs by name, or turn TLS off.
func (p *Picker) upgrade(o *Options) {
	i := slices.IndexFunc(o.Wires, func(w transport.Transport) bool { _, ok := w.(Upgrader); return ok })
	if i < 0 {
		return
	}
	t, network, err := o.Wires[i].(Upgrader).Upgrade(setupTCP{p.tcp})
	switch {
	case err != nil:
		p.noVerbs = reason(err)
	case t != nil && o.TLS != nil:
		t.Close()
		p.noVerbs = "connections between hosts are encrypted, and RDMA does not encrypt: set TUTTI_INSECURE_PLAIN=1 or TUTTI_TRANSPORT=tcp+verbs to use RDMA"
	case t != nil:
		p.verbs, p.network = t, network
	}
}

// setupTCP passes tcp to an Upgrader, but hides the methods of a Greeter and replaces Close. Only
// the Picker calls these methods of tcp.
type setupTCP struct{ transport.Transport }

// Close does nothing: the Picker closes tcp.
func (setupTCP) Close() error { return nil }

// parse parses an address list into addresses by kind. If a kind occurs twice, the first address is
// used.
func parse(list string) (map[string]string, error) {
	wires := make(map[string]string)
	for _, wire := range strings.Split(list, ";") {
		kind, addr, ok := strings.Cut(wire, "=")
		if !ok || kind == "" || addr == "" {
			return nil, fmt.Errorf("got %q, want kind=address", wire)
		}
		if _, twice := wires[kind]; !twice {
			wires[kind] = addr
		}
	}
	return wires, nil
}
