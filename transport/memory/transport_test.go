package memory

import (
	"testing"

	"github.com/tutti-go/tutti/transport/transporttest"
)

// world makes the Transports of one Hub.
func world(_ testing.TB, n int) []transporttest.Node {
	hub := New()
	nodes := make([]transporttest.Node, n)
	for i := range nodes {
		nodes[i].Transport = hub.Transport()
	}
	return nodes
}

func TestMemoryKeepsTheContract(t *testing.T) { transporttest.Run(t, world) }

func FuzzSchedule(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { transporttest.Schedule(t, world, seed, 400) })
}
