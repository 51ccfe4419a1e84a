package shm

import (
	"crypto/rand"
	"testing"

	"github.com/tutti-go/tutti/transport/transporttest"
)

// world makes n Transports as the ranks of one job have them.
func world(_ testing.TB, n int) []transporttest.Node {
	nodes := make([]transporttest.Node, n)
	job := rand.Text()
	for i := range nodes {
		nodes[i].Transport = New(Options{Job: job})
	}
	return nodes
}

// filed does without memfd_create, as where that is forbidden.
func filed(tb testing.TB, n int) []transporttest.Node {
	nodes := world(tb, n)
	for i := range nodes {
		nodes[i].Transport.(*Transport).useFiles()
	}
	return nodes
}

func TestContract(t *testing.T)          { transporttest.Run(t, world) }
func TestContractWithFiles(t *testing.T) { transporttest.Run(t, filed) }

func FuzzSchedule(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { transporttest.Schedule(t, world, seed, 400) })
}
