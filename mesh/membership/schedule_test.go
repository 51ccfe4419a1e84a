package membership

import (
	"math/rand/v2"
	"os"
	"testing"

	"github.com/tutti-go/tutti/fault"
)

// A schedule holds the faults of one run: the ranks that are killed, the pairs that are cut, and
// the times.
type schedule struct {
	n       int
	killed  []int
	killAt  []Span
	cuts    [][2]int
	cutAt   []Span
	suspect bool
}

func randomSchedule(rng *rand.Rand) (x schedule) {
	x.n = 2 + rng.IntN(8)
	order := rng.Perm(x.n)
	together := rng.IntN(2) == 0
	for _, r := range order[:rng.IntN(x.n)] {
		at := Span(rng.IntN(6000)) * Millisecond
		if together {
			at = Span(rng.IntN(60)) * Millisecond
		}
		x.killed, x.killAt = append(x.killed, r), append(x.killAt, at)
	}
	if x.n > 4 && len(x.killed) <= 1 && rng.IntN(2) == 0 {
		x.cuts = append(x.cuts, pair(order[x.n-1], order[x.n-2]))
		x.cutAt = append(x.cutAt, Span(rng.IntN(2000))*Millisecond)
	}
	x.suspect = rng.IntN(2) == 0
	return x
}

// TestSurvivorsAgreeOnTheFirstFailure runs random kills and cuts. Every survivor must report a
// failure, and all survivors must report the same failure first.
func TestSurvivorsAgreeOnTheFirstFailure(t *testing.T) {
	runs := uint64(250)
	if os.Getenv("TUTTI_SOAK") != "" {
		runs = 20_000
	}
	for seed := range runs {
		rng := rand.New(rand.NewPCG(seed, 2))
		x := randomSchedule(rng)
		w := started(t, x.n, seed)
		checkSchedule(t, w, seed, x)
	}
}

func checkSchedule(t *testing.T, w *cluster, seed uint64, x schedule) {
	t.Helper()
	for i, r := range x.killed {
		w.after(x.killAt[i], func() {
			w.kill(r)
			for q := range w.nodes {
				if x.suspect && q != r && w.rng.IntN(2) == 0 { // its data connections break, too
					w.after(w.latency(), func() { w.step(q, DataLinkDown{r, "reset"}) })
				}
			}
		})
	}
	for i, c := range x.cuts {
		w.after(x.cutAt[i], func() { w.sever(c[0], c[1]) })
		// The two ranks may have no control link.
		w.after(x.cutAt[i]+5*Second, func() { w.step(c[0], DataLinkDown{c[1], "takes no bytes"}) })
	}
	w.run(w.now + Time(14*Second))
	var first *fault.Error
	for r, node := range w.nodes {
		switch e := node.firstFailure(); {
		case node.dead:
		case e == nil && len(x.killed)+len(x.cuts) > 0:
			t.Errorf("seed %d %+v: rank %d hears nothing", seed, x, r)
		case e != nil && first == nil:
			first = e
		case e != nil && e.Error() != first.Error():
			t.Errorf("seed %d %+v: rank %d hears %v, another %v", seed, x, r, e, first)
		}
		if node.dead {
			continue
		}
		for _, dead := range x.killed {
			if !node.state.ranks[dead].gone() {
				t.Errorf("seed %d %+v: rank %d takes dead rank %d for alive", seed, x, r, dead)
			}
		}
		for q := range w.nodes {
			if !w.nodes[q].dead && node.state.ranks[q].gone() {
				t.Errorf("seed %d %+v: rank %d takes live rank %d for dead", seed, x, r, q)
			}
		}
	}
}
