package choose

import (
	"testing"

	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/p2p"
)

// behind bounds the predicted time of the default table's choice, divided by the predicted time of
// the best algorithm. The bound is larger than the error of the model.
const behind = 2.5

// By the default model, each choice of the default table must be slower than the best algorithm by
// at most the factor behind. So Explain lists the choice among the first algorithms.
func TestTheDefaultTablesChoicesAreAmongTheFirstPredicted(t *testing.T) {
	m := DefaultModel()
	for _, c := range []struct {
		wire   string
		shares bool
	}{{"shm", true}, {"memory", true}, {"shm", false}, {"tcp", false}, {"grpc", false}} {
		for _, n := range []int{2, 3, 4, 5, 7, 8} {
			chooser := collective.DefaultTable().Chooser(n, c.wire)
			for _, verb := range collective.Verbs() {
				for bytes := 4; bytes <= 64<<20; bytes *= 4 {
					x := chooser.Choose(verb, bytes, true, c.shares)
					chosen, known := m.Predict(x.Algorithm, n, bytes, p2p.DefaultSegment, c.wire)
					best := possible(m.Estimates(verb, n, bytes, p2p.DefaultSegment, c.wire), c.shares)
					if !known || chosen > behind*best.Seconds {
						t.Errorf("%v of %d bytes on %d ranks over %s: %s, which runs, is predicted to take %.3g us, %s %.3g us",
							verb, bytes, n, c.wire, x.Algorithm.Name(), 1e6*chosen, best.Algorithm.Name(), 1e6*best.Seconds)
					}
				}
			}
		}
	}
}

// possible returns the first estimate whose algorithm runs with all ranks on one host.
func possible(all []Estimate, shares bool) Estimate {
	for _, k := range all {
		if !k.Algorithm.Hierarchical() && (shares || !k.Algorithm.NeedsShared()) {
			return k
		}
	}
	return Estimate{}
}
