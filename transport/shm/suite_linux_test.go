package shm

import (
	"crypto/rand"
	"testing"

	"github.com/tutti-go/tutti/transport/transporttest"
)

// makeNodes makes n Transports with the same Options.Job, like the ranks of one job.
func makeNodes(_ testing.TB, n int) []transporttest.Node {
	nodes := make([]transporttest.Node, n)
	job := rand.Text()
	for i := range nodes {
		nodes[i].Transport = New(Options{Job: job})
	}
	return nodes
}

func TestContract(t *testing.T) { transporttest.Run(t, makeNodes) }

func FuzzSchedule(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { transporttest.Schedule(t, makeNodes, seed, 400) })
}
