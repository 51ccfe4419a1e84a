package collective

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"testing"

	"github.com/tutti-go/tutti/internal/test/teamtest"
	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
)

// evenWidth is a number of elements per chunk. With it, all numbers of ranks, chunks and segments
// in this file divide a vector evenly, so that costs are exact.
const evenWidth = 24

func TestCostsAreThoseOfARun(t *testing.T) {
	const width = evenWidth
	onHostsOfCosts(t, func(t *testing.T, n, hosts int) {
		tm, seen := newRecordedTeamAt(t, onHosts(n, hosts), teamtest.SharedMemory)
		everyAlgorithm(func(a Algorithm) {
			if a.NeedsShared() || a.Hierarchical() != (hosts > 1) {
				return // the algorithm sends no frames, or another test covers it
			}
			for _, segments := range []int{1, 2, 3, 8} {
				if segments > 1 && !a.pipelines() {
					return // each message of the algorithm would have several segments
				}
				m := 8 * n * width
				segment := m / segments
				if segments == 1 {
					// Each message is one segment, even if the message is longer than the vector.
					segment = 0
				}
				all := record(t, tm, seen, a, 0, width, segment)
				steps := schedule(t, all)
				alpha, beta, _ := a.Cost(n, m, m/segments)
				if int(alpha+.5) != steps || int(beta+.5) != longest(all, steps) {
					t.Errorf("%v in %d segments: %d steps and %d bytes, want %v and %v", a, segments, steps, longest(all, steps), alpha, beta)
				}
			}
		})
	})
}

// onHostsOfCosts runs a test on 1 to 9 ranks. The ranks are first on one host, and then each on its
// own host. The cost of a hierarchical algorithm assumes the second case.
func onHostsOfCosts(t *testing.T, do func(t *testing.T, n, hosts int)) {
	ranks := []int{1, 2, 3, 4, 5, 6, 7, 8, 9}
	if underRace() {
		ranks = []int{3, 8} // the counts do not depend on the race detector
	}
	for _, n := range ranks {
		t.Run(fmt.Sprintf("%d ranks", n), func(t *testing.T) { do(t, n, 1) })
		if n > 1 {
			t.Run(fmt.Sprintf("%d hosts", n), func(t *testing.T) { do(t, n, n) })
		}
	}
}

// pipelines reports whether each step of an algorithm moves one segment of the vector.
func (a Algorithm) pipelines() bool { return a.Name() == "chain" || a.Name() == "binary_tree" }

// passesOn reports whether each rank folds its share into the fold of the earlier ranks, and
// therefore waits for their folds.
func (a Algorithm) passesOn() bool {
	scans := a.Verb() == VerbScan || a.Verb() == VerbExScan
	return scans && (a.Name() == "linear" || a.Name() == "chain")
}

// longest returns the sum over all steps of the size in bytes of the longest message.
func longest(all []*message, steps int) int {
	most := make([]int, steps)
	for _, m := range all {
		most[m.step] = max(most[m.step], m.bytes)
	}
	bytes := 0
	for _, b := range most {
		bytes += b
	}
	return bytes
}

// The cost must count as many bytes of folds as the busiest rank folds, except for rounding: no
// fold of another rank may lie on the critical path. Exception: if each rank passes its fold on to
// the next rank, the folds of several ranks lie on the critical path. There the busiest rank must
// fold at most one vector.
func TestCostsCountTheFoldsOfTheBusiestRank(t *testing.T) {
	onHostsOfCosts(t, func(t *testing.T, n, hosts int) {
		tm := teamtest.StartAt(t, onHosts(n, hosts), teamtest.SharedMemory, 0, teamtest.NoWrapper)
		everyAlgorithm(func(a Algorithm) {
			if a.Hierarchical() != (hosts > 1) {
				return
			}
			// Each rank folds the first vector as a whole. The second one is longer.
			for _, width := range []int{evenWidth, 3000} {
				got := mostFolded(t, tm, a, width)
				_, _, gamma := a.Cost(n, 8*n*width, p2p.DefaultSegment)
				if a.passesOn() {
					gamma = min(gamma, float64(8*n*width))
				}
				// Parts of a fragment differ by one element.
				if math.Abs(gamma-float64(got)) > gamma/200+.5 {
					t.Errorf("%v on %d ranks: %d bytes are folded of %d, want %v", a, n, got, 8*n*width, gamma)
				}
			}
		})
	})
}

// mostFolded runs an algorithm with the given number of elements per chunk. It returns the number
// of bytes that the busiest rank has folded.
func mostFolded(t testing.TB, tm *teamtest.Team, a Algorithm, width int) int {
	t.Helper()
	folded := make([]atomic.Int64, len(tm.Ranks))
	tm.Run(t, func(ctx context.Context, r *p2p.Round) error {
		count := func(earlier, _ provenance) provenance {
			folded[r.Rank()].Add(8)
			return earlier
		}
		k, err := reduce.Func("count", reduce.Commutative, count).Kernel(tensor.Uint64)
		if err != nil {
			return err
		}
		return newFixture(r.Size(), r.Rank(), width, k).call(ctx, r, a, 0)
	})
	most := 0
	for i := range folded {
		most = max(most, int(folded[i].Load()))
	}
	return most
}

func TestCostsInSharedMemoryCountHandOvers(t *testing.T) {
	for n := 2; n <= 8; n *= 2 {
		tm := teamtest.New(t, n, 0)
		var ready, done int // flags that rank 0 has set
		tm.Ranks[0].Group.SetTracer(func(s p2p.TraceEvent) {
			switch s.Kind {
			case p2p.TraceSetReady:
				ready++
			case p2p.TraceSetDone:
				done++
			}
		})
		everyAlgorithm(func(a Algorithm) {
			if !a.NeedsShared() {
				return
			}
			for _, m := range []int{64 * n, p2p.SlotSize, 3 * p2p.SlotSize, 100_000 * n} {
				ready, done = 0, 0
				tm.Run(t, func(ctx context.Context, r *p2p.Round) error {
					return newFixture(r.Size(), r.Rank(), m/n/8, provenanceKernel(t, reduce.Commutative)).call(ctx, r, a, 0)
				})
				got := done
				if ready == done {
					got *= 2
				}
				if alpha, _, _ := a.Cost(n, m, p2p.DefaultSegment); int(alpha) != got {
					t.Errorf("%v of %d bytes on %d ranks: %d hand-overs, want %v", a, m, n, got, alpha)
				}
			}
		})
	}
}
