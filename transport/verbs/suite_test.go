package verbs

import (
	"net"
	"testing"

	"github.com/tutti-go/tutti/transport/memory"
	"github.com/tutti-go/tutti/transport/tcp"
	"github.com/tutti-go/tutti/transport/transporttest"
	"github.com/tutti-go/tutti/transport/verbs/softdevice"
)

// nodesOverMemory makes Transports on one Fabric, set up over memory.
func nodesOverMemory(o Options) transporttest.Maker {
	return func(tb testing.TB, n int) []transporttest.Node {
		hub, fabric := memory.New(), softdevice.NewFabric()
		nodes := make([]transporttest.Node, n)
		for i := range nodes {
			o := o
			o.Setup, o.Device = hub.Transport(), fabric.Device(i)
			t, err := New(o)
			if err != nil {
				tb.Fatal(err)
			}
			nodes[i].Transport = t
		}
		tb.Cleanup(func() {
			if n := fabric.NotReady(); n > 0 {
				tb.Errorf("%d work requests found no posted receive", n)
			}
		})
		return nodes
	}
}

func TestVerbsKeepsTheContract(t *testing.T) { transporttest.Run(t, nodesOverMemory(Options{})) }

// TestVerbsKeepsTheContractWithTinyBuffers runs the suite with the smallest buffers. There every
// frame except the shortest needs several messages, and every kind of wait for credits occurs.
func TestVerbsKeepsTheContractWithTinyBuffers(t *testing.T) {
	transporttest.Run(t, nodesOverMemory(Options{Depth: 3, Buffer: 256, CacheBytes: -1}))
}

// TestVerbsKeepsTheContractOverTCP runs the suite with set-up links over tcp. Unlike those over
// memory, they have pending Conns, limits and a listener.
func TestVerbsKeepsTheContractOverTCP(t *testing.T) {
	transporttest.Run(t, func(tb testing.TB, n int) []transporttest.Node {
		return nodesOverTCP("127.0.0.1", softdevice.NewFabric())(tb, n)
	})
}

// nodesOverTCP makes Transports that are set up over tcp at the given address. They use a Fabric
// or, without a Fabric, this host's device.
func nodesOverTCP(ip string, fabric *softdevice.Fabric) transporttest.Maker {
	return func(tb testing.TB, n int) []transporttest.Node {
		nodes := make([]transporttest.Node, n)
		for i := range nodes {
			l, err := net.Listen("tcp", ip+":0")
			if err != nil {
				tb.Fatal(err)
			}
			o := Options{Setup: tcp.New(tcp.Options{})}
			if fabric != nil {
				o.Device = fabric.Device(i)
			}
			t, err := New(o)
			if err != nil {
				tb.Fatal(err)
			}
			nodes[i] = transporttest.Node{Transport: t, Listener: l}
		}
		return nodes
	}
}

func FuzzSchedule(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) {
		transporttest.Schedule(t, nodesOverMemory(Options{Depth: 3, Buffer: 512}), seed, 400)
	})
}
