package auto

import (
	"fmt"
	"strings"

	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/memory"
	"github.com/tutti-go/tutti/transport/shm"
	"github.com/tutti-go/tutti/transport/tcp"
	"github.com/tutti-go/tutti/transport/verbs"
)

// A choice is a wire, the peer's address on it, and the reason. Without a kind,
// there is none.
type choice struct{ kind, addr, why string }

// pick chooses the wire to a peer's address. It depends on the address and on
// this rank's Hub and place only.
func (p *Picker) pick(addr string) choice {
	if len(addr) > transport.MaxAddr {
		return choice{why: fmt.Sprintf("the address has %d bytes, of at most %d", len(addr), transport.MaxAddr)}
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
	not := p.whyNotVerbs(wires[verbs.Name])
	switch {
	case a != "" && not == "":
		return choice{verbs.Name, a, why + ", and both have RDMA devices: " + wires[verbs.Name]}
	case a != "" && verbs.Built:
		return choice{tcp.Name, a, why + "; " + not}
	case a != "":
		return choice{tcp.Name, a, why}
	}
	return choice{why: why + ", and there is no tcp"}
}

// whyNotShm is why an address on shm is not taken; "" when it is.
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

// whyNotVerbs is why the network of a peer's RDMA device is not taken; "" when it is.
func (p *Picker) whyNotVerbs(network string) string {
	switch {
	case p.verbs == nil:
		return "no verbs: " + p.noVerbs
	case network == "":
		return "no verbs: the peer does not offer it; verbsinfo on its host tells why"
	case network != p.verbs.Network():
		return fmt.Sprintf("no verbs: this rank's device is on %s, the peer's on %s", p.verbs.Network(), network)
	}
	return ""
}

// openVerbs opens an RDMA device, if verbs may be taken. That it cannot be is no
// error here: the device was not asked for by name, and Explain tells.
func (p *Picker) openVerbs(o *Options) {
	switch {
	case !verbs.Built && o.VerbsDevice == nil:
		p.noVerbs = "it is not built in"
		return
	case o.TLS != nil:
		p.noVerbs = "TLS is asked for, and RDMA does not encrypt"
		return
	}
	t, err := verbs.New(verbs.Options{Setup: plain{p.tcp}, Device: o.VerbsDevice, OnRequest: true})
	if err != nil {
		p.noVerbs = reason(err)
		return
	}
	v := t.(*verbs.Transport)
	if err := v.Try(); err != nil {
		v.Close()
		p.noVerbs = reason(err)
		return
	}
	p.verbs = v
}

// plain is tcp as verbs is set up over it: the Picker has its greeting, and its end.
type plain struct{ transport.Transport }

func (plain) Close() error { return nil }

// parse reads an address list: the address by kind. Of a kind that comes twice
// the first one counts.
func parse(list string) (map[string]string, error) {
	wires := make(map[string]string)
	for _, wire := range strings.Split(list, ";") {
		kind, addr, ok := strings.Cut(wire, "=")
		if !ok || kind == "" || addr == "" {
			return nil, fmt.Errorf("%q is not kind=address", wire)
		}
		if _, twice := wires[kind]; !twice {
			wires[kind] = addr
		}
	}
	return wires, nil
}
