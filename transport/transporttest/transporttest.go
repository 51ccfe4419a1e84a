// Package transporttest is the conformance suite of transports. Each promise of package transport
// is a subtest that any implementation can run. The layers above can rely on a transport that
// passes all subtests.
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
// Run the suite also with the race detector, because several promises concern memory that one
// goroutine may not touch while another goroutine uses it. Subtests check for leaked goroutines and
// descriptors, so no other test may run at the same time. The subtests of an ability that a
// transport does not have are skipped.
//
// To test between two machines or two processes, one of them calls Run with the Maker of a Remote,
// and the other calls RunAgent.
//
// The suite does not check speed, allocations, or the limits on unauthenticated peers. Such tests
// depend on the transport and belong to its package.
package transporttest

import (
	"net"
	"testing"

	"github.com/tutti-go/tutti/transport"
)

// A Node is one rank of a cluster, new for each test.
type Node struct {
	Transport transport.Transport
	Listener  net.Listener // the argument of Serve; nil for a transport that needs none
}

// A Maker makes n Nodes that can dial each other. The suite serves on them and closes them. The
// Maker uses tb.Cleanup to release other resources of the Nodes.
type Maker func(tb testing.TB, n int) []Node

// A testCase checks one promise of the contract.
type testCase struct {
	name  string
	check func(t *testing.T, mk Maker)
}

// Run checks every promise of the contract, each in a subtest with Nodes of its own.
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
