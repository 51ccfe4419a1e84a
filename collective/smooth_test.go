package collective

import (
	"math"
	"testing"

	"github.com/tutti-go/tutti/p2p"
)

// The approximate speeds of a host's memory and of a current network: α in seconds, β and γ in
// seconds per byte.
var speeds = []struct {
	wire               string
	shares             bool
	alpha, beta, gamma float64
}{
	{"shm", true, 1e-6, 1e-10, 5e-11},
	{"tcp", false, 1e-5, 5e-10, 5e-11},
}

// The number of ranks may not be a power of two, and the count may be odd. By the costs of the
// default algorithms, such a call must take at most 1.5 times as long as a call with the next power
// of two and equal chunks.
func TestTimeGrowsSmoothlyWithRanksAndCount(t *testing.T) {
	for _, s := range speeds {
		predicted := func(verb Verb, n, m int) float64 {
			x := DefaultTable().Chooser(n, s.wire).Choose(verb, m, true, s.shares)
			segment := x.Segment
			if segment == 0 {
				segment = p2p.DefaultSegment
			}
			alpha, beta, gamma := x.Algorithm.Cost(n, m, segment)
			return alpha*s.alpha + beta*s.beta + gamma*s.gamma
		}
		for _, verb := range Verbs() {
			for _, n := range []int{3, 5, 6, 7, 9, 15, 17, 33} {
				below := 1 << int(math.Log2(float64(n)))
				for _, m := range []int{4, 1 << 10, 60 << 10, 1 << 20, 64 << 20} {
					for _, odd := range []int{m, m + 4, m + m/3/4*4} {
						most := max(predicted(verb, below, m), predicted(verb, 2*below, m), predicted(verb, below, odd), predicted(verb, 2*below, odd))
						if got := predicted(verb, n, odd); got > 1.5*most*(1+1e-9) {
							t.Errorf("%v over %s of %d bytes on %d ranks: %.3g s, and at most %.3g s on %d or %d", verb, s.wire, odd, n, got, most, below, 2*below)
						}
					}
				}
			}
		}
	}
}

// With more than two ranks, a broadcast must use as few fragments as possible, whatever the number
// of ranks.
func TestABroadcastOfManyRanksHasFewPieces(t *testing.T) {
	a := find(t, VerbBroadcast, shared)
	for n := 3; n <= 9; n++ {
		if pieces, _, _ := a.Cost(n, 16*p2p.SlotSize+4, 0); pieces != 17 {
			t.Errorf("%d ranks hand over %v pieces, want 17", n, pieces)
		}
	}
}
