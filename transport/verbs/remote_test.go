//go:build !race

package verbs

import (
	"net"
	"sync"
	"testing"

	"github.com/tutti-go/tutti/transport/transporttest"
	"github.com/tutti-go/tutti/transport/verbs/softdevice"
)

// TestVerbsKeepsTheContractWithRemoteNodes runs the suite on Nodes of which an agent makes every
// second one. Here the agent is another goroutine. In TestDevicesOfTwoMachinesKeepTheContract it
// runs on another machine. The race detector would make this test ten times slower, so with it the
// suite runs only on local Nodes.
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
