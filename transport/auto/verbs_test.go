package auto

import (
	"strings"
	"testing"

	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/internal/tlsopt"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/tcp"
	"github.com/tutti-go/tutti/transport/transporttest"
	"github.com/tutti-go/tutti/transport/verbs"
	"github.com/tutti-go/tutti/transport/verbs/softdevice"
)

// software returns a verbs Transport with a software device.
func software(fabric *softdevice.Fabric, rank int) []transport.Transport {
	return []transport.Transport{verbs.Over(verbs.Options{Setup: tcp.New(tcp.Options{}), Device: fabric.Device(rank)})}
}

// In the first case every end has a device. In the second case every second end has a device. Ends
// without a device must reach the other ends over tcp, whichever side dials.
func TestAutoKeepsTheContractOverVerbs(t *testing.T) {
	for name, each := range map[string]int{"every end has a device": 1, "every other end has one": 2} {
		t.Run(name, func(t *testing.T) {
			transporttest.Run(t, func(tb testing.TB, n int) (nodes []transporttest.Node) {
				fabric := softdevice.NewFabric()
				for i := range n {
					o := Options{NoShm: true}
					if i%each == 0 {
						o.Wires = software(fabric, i)
					}
					nodes = append(nodes, node(tb, "auto", o, listen(tb)))
				}
				return nodes
			})
		})
	}
}

func TestVerbsIsChosenWhereBothHaveADevice(t *testing.T) {
	leak.Check(t)
	fabric := softdevice.NewFabric()
	me, mine := serve(t, "auto", Options{NoShm: true, Wires: software(fabric, 0)}, listen(t))
	_, without := serve(t, "auto", Options{NoShm: true}, listen(t))
	if !strings.Contains(mine, "verbs=software;tcp=") {
		t.Errorf("got the address %q", mine)
	}
	for addr, want := range map[string]string{
		mine:    "verbs: shm is switched off, and both have RDMA devices: software",
		without: "tcp: shm is switched off",
		strings.Replace(mine, "=software", "=roce2-ipv4", 1): "tcp: shm is switched off",
	} {
		got := me.(*Picker).Explain(addr)
		if before, _, _ := strings.Cut(got, "; no verbs: "); before != want {
			t.Errorf("%q: got %q, want %q", addr, got, want)
		}
	}
	mem, free, err := me.(*Picker).Alloc(100)
	if err != nil || len(mem) != 100 {
		t.Fatalf("%d bytes, %v", len(mem), err)
	}
	if err := free(); err != nil {
		t.Error(err)
	}
}

// A device that cannot set up a connection must be excluded before a peer gets its address.
func TestADeviceThatCannotBeUsedIsNotOffered(t *testing.T) {
	p := &Picker{name: Name, tcp: tcp.New(tcp.Options{})}
	defer p.tcp.Close()
	p.upgrade(&Options{Wires: software(softdevice.NewFabric(), 0), TLS: new(tlsopt.Options)})
	if got := p.whyNotVerbs("software"); !strings.Contains(got, "RDMA does not encrypt") {
		t.Errorf("with TLS: %q", got)
	}
	t.Setenv("TUTTI_VERBS_DEPTH", "none")
	p.upgrade(&Options{Wires: software(softdevice.NewFabric(), 0)})
	if p.verbs != nil || !strings.Contains(p.noVerbs, "TUTTI_VERBS_DEPTH") {
		t.Errorf("got %v, because of %q", p.verbs, p.noVerbs)
	}
}
