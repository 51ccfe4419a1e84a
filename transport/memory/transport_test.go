package memory

import (
	"testing"

	"github.com/tutti-go/tutti/transport/transporttest"
)

// makeNodes makes the Transports of one Hub.
func makeNodes(_ testing.TB, n int) []transporttest.Node {
	hub := New()
	nodes := make([]transporttest.Node, n)
	for i := range nodes {
		nodes[i].Transport = hub.Transport()
	}
	return nodes
}

func TestMemoryKeepsTheContract(t *testing.T) { transporttest.Run(t, makeNodes) }

func FuzzSchedule(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { transporttest.Schedule(t, makeNodes, seed, 400) })
}
