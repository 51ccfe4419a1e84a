//go:build !race

package verbs

import (
	"net"
	"sync"
	"testing"

	"github.com/tutti-go/tutti/transport/transporttest"
	"github.com/tutti-go/tutti/transport/verbs/softdevice"
)

// Half of the Nodes belong to another goroutine here, and to another machine in
// TestDevicesOfTwoMachinesKeepTheContract. Under the race detector, which takes ten times as long,
// the same suite runs only with local nodes.
func TestVerbsKeepsTheContractWithRemoteNodes(t *testing.T) {
	mk := nodesOverTCP("127.0.0.1", softdevice.NewFabric())
	near, far := net.Pipe()
	var agent sync.WaitGroup
	agent.Go(func() { transporttest.RunAgent(t, far, mk) })
	r := transporttest.Connect(near)
	transporttest.Run(t, r.Maker(mk))
	r.Stop()
	near.Close()
	agent.Wait()
}
