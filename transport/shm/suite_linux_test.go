package shm

import (
	"crypto/rand"
	"testing"

	"github.com/tutti-go/tutti/transport/transporttest"
)

// makeNodes makes n Transports as the ranks of one job have them.
func makeNodes(_ testing.TB, n int) []transporttest.Node {
	nodes := make([]transporttest.Node, n)
	job := rand.Text()
	for i := range nodes {
		nodes[i].Transport = New(Options{Job: job})
	}
	return nodes
}

// worldWithout is a world whose ranks have to do without some ways to share memory.
// No file is left when it has gone.
func worldWithout(take func(*ways)) func(tb testing.TB, n int) []transporttest.Node {
	return func(tb testing.TB, n int) []transporttest.Node {
		dir := emptyAtLast(tb)
		nodes := makeNodes(tb, n)
		for i := range nodes {
			w := &nodes[i].Transport.(*Transport).ways
			w.dirs = []string{dir}
			take(w)
		}
		return nodes
	}
}

func TestContract(t *testing.T) { transporttest.Run(t, makeNodes) }
func TestContractWithFiles(t *testing.T) {
	transporttest.Run(t, worldWithout(func(w *ways) { w.sealed = refuseMemory }))
}
func TestContractWithNames(t *testing.T) {
	named := worldWithout(func(w *ways) { w.pass = refuseDescriptor })
	transporttest.Run(t, func(tb testing.TB, n int) []transporttest.Node {
		nodes := named(tb, n)
		for i := range nodes {
			nodes[i].Transport.(*Transport).lost.Store(true) // as if a Share had found it out
		}
		return nodes
	})
}

func FuzzSchedule(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { transporttest.Schedule(t, makeNodes, seed, 400) })
}
