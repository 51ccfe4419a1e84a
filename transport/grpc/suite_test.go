package grpc

import (
	"net"
	"testing"

	"github.com/tutti-go/tutti/internal/test/tlstest"
	"github.com/tutti-go/tutti/internal/tlsopt"
	"github.com/tutti-go/tutti/transport/transporttest"
)

func TestTransport(t *testing.T) { runSuite(t, Options{}) }

// The suite must pass with the smallest buffers, too. Then every frame spans messages and every
// kind of wait occurs.
func TestTransportWithTinyBuffers(t *testing.T) {
	runSuite(t, Options{tune: tuning{
		segment: 5000, copied: 2048, batch: 2100, inbox: 1, window: 64 << 10, write: 4 << 10, read: 4 << 10,
	}})
}

func TestTransportOverTLS(t *testing.T) {
	if raceDetector {
		// Reason: TLS shares no memory of this module. The other suites run under the detector.
		t.Skip("TLS shares no memory of ours; the other suites do")
	}
	ca := tlstest.New(t)
	runSuite(t, Options{TLS: &tlsopt.Options{
		CAFile: ca.CA, CertFile: ca.Cert, KeyFile: ca.Key, Mutual: true,
	}})
}

func runSuite(t *testing.T, opts Options) {
	transporttest.Run(t, func(tb testing.TB, n int) []transporttest.Node {
		nodes := make([]transporttest.Node, n)
		for i := range nodes {
			nodes[i] = transporttest.Node{Transport: New(opts), Listener: listen(tb)}
		}
		return nodes
	})
}

func listen(tb testing.TB) net.Listener {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	return l
}
