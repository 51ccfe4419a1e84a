//go:build verbs && linux && cgo

package verbs

import (
	"context"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/transport/memory"
	"github.com/tutti-go/tutti/transport/transporttest"
)

// TestDeviceKeepsTheContract runs the suite on this machine's device. `make test-verbs` runs it
// on a machine with a soft-RoCE device.
func TestDeviceKeepsTheContract(t *testing.T) {
	if _, err := openDeviceForTest(); err != nil {
		// Reason: this test needs a real device, which `make test-verbs` provides. The tests of the
		// software devices need none.
		t.Skipf("there is no usable RDMA device: %v", err)
	}
	transporttest.Run(t, func(tb testing.TB, n int) []transporttest.Node {
		hub := memory.New()
		nodes := make([]transporttest.Node, n)
		for i := range nodes {
			t, err := New(Options{Setup: hub.Transport()})
			if err != nil {
				tb.Fatal(err)
			}
			nodes[i].Transport = t
		}
		return nodes
	})
}

// TestDevicesOfTwoMachinesKeepTheContract runs the suite between the devices of two machines.
// tools/verbs-vm starts it on both machines. The nodes of one machine are remote nodes for the
// other.
func TestDevicesOfTwoMachinesKeepTheContract(t *testing.T) {
	needsDevice(t)
	own, peer := os.Getenv("VERBS_IP"), os.Getenv("VERBS_PEER")
	if own == "" || own == peer {
		// Reason: this test needs a second machine. tools/test-verbs.sh starts it on two machines.
		t.Skip("there is no second machine: `make test-verbs` runs this test on two")
	}
	mk := nodesOverTCP(own, nil)
	if os.Getenv("VERBS_RANK") != "0" {
		wire := dialUntilThere(t, peer+remotePort)
		transporttest.RunAgent(t, wire, mk)
		wire.Close()
		return
	}
	l, err := net.Listen("tcp", own+remotePort)
	if err != nil {
		t.Fatal(err)
	}
	wire, err := l.Accept()
	l.Close()
	if err != nil {
		t.Fatal(err)
	}
	r := transporttest.Connect(wire)
	transporttest.Run(t, r.Maker(mk))
	r.Stop()
	wire.Close()
}

const remotePort = ":4002"

// dialUntilThere dials until the other machine, which boots at its own pace, listens.
func dialUntilThere(t *testing.T, addr string) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err == nil {
			return c
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func TestDeviceSpreadsItsQueuesOverItsWaiters(t *testing.T) {
	needsDevice(t)
	leak.Check(t)
	opened, err := openDevice(&config{gid: -1, timeout: 14, retries: 6, rnr: 6, waiters: 3})
	if err != nil {
		t.Fatal(err)
	}
	d := opened.(*ibDevice)
	var pairs []*ibQueuePair
	open := func() {
		t.Helper()
		p, err := d.NewQueuePair(minDepth, func() {})
		if err != nil {
			t.Fatal(err)
		}
		pairs = append(pairs, p.(*ibQueuePair))
	}
	spread := func(want ...int) {
		t.Helper()
		got := make([]int, len(d.waiters))
		for _, p := range pairs {
			for i, w := range d.waiters {
				if p.cq.channel == w.channel {
					got[i]++
				}
			}
		}
		if !slices.Equal(got, want) || !slices.Equal(d.load, want) {
			t.Errorf("the waiters have %v queues, and are taken to have %v, want %v", got, d.load, want)
		}
	}
	shut := func(i int) {
		t.Helper()
		if err := pairs[i].Close(); err != nil {
			t.Error(err)
		}
		pairs = slices.Delete(pairs, i, i+1)
	}
	for range 7 {
		open()
	}
	spread(3, 2, 2)
	shut(5)
	shut(2) // both queues of the third waiter
	spread(3, 2, 0)
	open()
	spread(3, 2, 1)
	for len(pairs) > 0 {
		shut(0)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// A write of no bytes, without an address, must complete, and only after the frames that were sent
// before the write.
func TestDeviceCompletesTrySend(t *testing.T) {
	needsDevice(t)
	b := newConnPair(t, nil, Options{})
	for want := range 3 {
		b.trySend("head", "body")
		b.until("the frame", func() bool { return b.sinks[1].n > want })
		b.until("its completion", func() bool { n, _ := b.ends[0].Unsent(); return n == 0 })
	}
}

// BenchmarkDeviceFrame is for comparison with ib_write_bw and ib_send_lat.
func BenchmarkDeviceFrame(b *testing.B) {
	if _, err := openDeviceForTest(); err != nil {
		// Reason: the benchmark measures a real device.
		b.Skipf("there is no usable RDMA device: %v", err)
	}
	benchFrames(b, nil)
}

// BenchmarkDeviceImprovements measures what each optimization of the protocol saves.
func BenchmarkDeviceImprovements(b *testing.B) {
	if _, err := openDeviceForTest(); err != nil {
		// Reason: the benchmark measures a real device.
		b.Skipf("there is no usable RDMA device: %v", err)
	}
	benchImprovements(b, nil)
}

func openDeviceForTest() (string, error) {
	d, err := openDevice(&config{gid: -1, timeout: 14, retries: 6, rnr: 6})
	if err != nil {
		return "", err
	}
	return d.Describe(), d.Close()
}
