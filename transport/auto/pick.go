package auto

import (
	"fmt"
	"strings"

	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/memory"
	"github.com/tutti-go/tutti/transport/shm"
	"github.com/tutti-go/tutti/transport/tcp"
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
	why := p.notShm(wires[shm.Name])
	if why == "" {
		return choice{shm.Name, wires[shm.Name], "the same host"}
	}
	if p.name == shm.Name {
		return choice{why: why + ", and shm is asked for"}
	}
	if a := wires[tcp.Name]; a != "" {
		return choice{tcp.Name, a, why}
	}
	return choice{why: why + ", and there is no tcp"}
}

// notShm is why an address on shm is not taken; "" when it is.
func (p *Picker) notShm(addr string) string {
	if why := p.noShm.Load(); why != nil {
		return *why
	}
	if addr == "" {
		return "the peer does not offer shm"
	}
	_, why := p.shm.Reaches(addr)
	return why
}

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
