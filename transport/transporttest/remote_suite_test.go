//go:build !race

package transporttest

import (
	"testing"

	"github.com/tutti-go/tutti/transport/memory"
)

// With the race detector this test takes ten times as long, and the same suite runs there without
// an agent.
func TestRemoteNodesKeepTheContract(t *testing.T) {
	hub := memory.New()
	mk := func(_ testing.TB, n int) []Node { return []Node{{Transport: hub.Transport()}} }
	near, r, over := runAgent(t, mk)
	Run(t, r.Maker(mk))
	r.Stop()
	near.Close()
	over.Wait()
}
