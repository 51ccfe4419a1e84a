package grpc

import (
	"net"
	"testing"

	"github.com/tutti-go/tutti/transport/transporttest"
)

func TestTransport(t *testing.T) {
	transporttest.Run(t, func(tb testing.TB, n int) []transporttest.Node {
		nodes := make([]transporttest.Node, n)
		for i := range nodes {
			nodes[i] = transporttest.Node{Transport: New(Options{}), Listener: listen(tb)}
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
