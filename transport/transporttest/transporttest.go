// Package transporttest judges a transport: each promise of package transport is
// a subtest that any implementation can run, and a transport that passes them
// all can be relied on by the layers above.
//
//	func TestTransport(t *testing.T) {
//		transporttest.Run(t, func(tb testing.TB, n int) []transporttest.Node {
//			nodes := make([]transporttest.Node, n)
//			for i := range nodes {
//				l, err := net.Listen("tcp", "127.0.0.1:0")
//				if err != nil {
//					tb.Fatal(err)
//				}
//				nodes[i] = transporttest.Node{Transport: mine.New(), Listener: l}
//			}
//			return nodes
//		})
//	}
//
// Run it with the race detector too: several promises are about memory that one
// goroutine may not touch while another does. Subtests look for goroutines and
// descriptors left behind, so nothing else may run beside them. Abilities that
// are absent are skipped by name.
//
// Between two machines, or two processes, one of them calls Run with the Maker of a Remote,
// and the other one RunAgent.
//
// Speed and allocations are not judged, nor what strangers may send: those tests
// know the wire, and stand beside it.
package transporttest

import (
	"net"
	"testing"

	"github.com/tutti-go/tutti/transport"
)

// A Node is one rank's end of a world, fresh for one test.
type Node struct {
	Transport transport.Transport
	Listener  net.Listener // what Serve is given; nil for a transport that needs none
}

// A Maker makes n Nodes that can dial each other. The suite serves and closes
// them; whatever else they need ends by tb.Cleanup.
type Maker func(tb testing.TB, n int) []Node

// A testCase is one sentence of the contract and the test that holds it.
type testCase struct {
	name  string
	check func(t *testing.T, mk Maker)
}

// Run checks every promise, each in a subtest on Nodes of its own.
func Run(t *testing.T, mk Maker) {
	for _, group := range [][]testCase{
		dialTests(), frameTests(), sinkTests(), doneTests(), concurrencyTests(),
		armTests(), unsentTests(), closeTests(), cleanupTests(),
		exposeTests(), gatherTests(), trySendTests(), shareTests(), pendingTests(),
		scheduleTests(),
	} {
		for _, p := range group {
			t.Run(p.name, func(t *testing.T) { p.check(t, mk) })
		}
	}
}
