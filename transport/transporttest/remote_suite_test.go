//go:build !race

package transporttest

import (
	"testing"

	"github.com/tutti-go/tutti/transport/memory"
)

// TestRemoteNodesKeepTheContract runs the suite on Nodes of which an agent makes every second one.
// It is not built with the race detector, which would make it ten times slower. There the same
// suite runs without an agent.
func TestRemoteNodesKeepTheContract(t *testing.T) {
	hub := memory.New()
	mk := func(_ testing.TB, n int) []Node { return []Node{{Transport: hub.Transport()}} }
	near, r, over := runAgent(t, mk)
	Run(t, r.Maker(mk))
	r.Stop()
	near.Close()
	over.Wait()
}
