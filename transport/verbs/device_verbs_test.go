//go:build verbs && linux && cgo

package verbs

import (
	"testing"

	"github.com/tutti-go/tutti/transport/memory"
	"github.com/tutti-go/tutti/transport/transporttest"
)

// TestDeviceKeepsTheContract runs the suite on this machine's device. `make
// test-verbs` runs it where there is one, of soft-RoCE's.
func TestDeviceKeepsTheContract(t *testing.T) {
	if _, err := openDeviceForTest(); err != nil {
		// Reason: a real device is what is tested; `make test-verbs` has one, the software devices' tests need none.
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

// BenchmarkDeviceFrame is to be read beside ib_write_bw's and ib_send_lat's figures.
func BenchmarkDeviceFrame(b *testing.B) {
	if _, err := openDeviceForTest(); err != nil {
		b.Skipf("there is no usable RDMA device: %v", err)
	}
	benchFrames(b, nil)
}

// BenchmarkDeviceImprovements is what the messages cost that are spared.
func BenchmarkDeviceImprovements(b *testing.B) {
	if _, err := openDeviceForTest(); err != nil {
		b.Skipf("there is no usable RDMA device: %v", err)
	}
	benchImprovements(b, nil)
}

func openDeviceForTest() (string, error) {
	d, err := openDevice(&wishes{gid: -1, timeout: 14, retries: 6, rnr: 6})
	if err != nil {
		return "", err
	}
	return d.describe(), d.close()
}
