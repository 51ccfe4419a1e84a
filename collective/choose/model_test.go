package choose

import (
	"math"
	"reflect"
	"testing"

	"github.com/tutti-go/tutti/collective"
)

func find(t testing.TB, verb collective.Verb, name string) collective.Algorithm {
	t.Helper()
	a, err := collective.Find(verb, name)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// sample returns a model with round factors: on wire "a", a message of 100 bytes takes 10 + 100
// seconds, and a message of 1000 bytes takes 20 + 2000 seconds.
func sample() *Model {
	return &Model{Gamma: 3, Links: []LinkCost{
		{"a", 100, 10, 1}, {"a", 0, 20, 2},
		{"b", 0, 1000, 0},
		{Shared, 0, 5, 0},
	}}
}

func TestPredictionsAddUpTheCountsOfACost(t *testing.T) {
	// On 4 ranks, ring takes 6α + 1.5mβ + 0.75mγ, in messages of m/4.
	ring := find(t, collective.VerbAllReduce, "ring")
	shared := find(t, collective.VerbAllReduce, "shared")
	for _, c := range []struct {
		a     collective.Algorithm
		n, m  int
		wire  string
		want  float64
		known bool
	}{
		{ring, 4, 400, "a", 6*10 + 600 + 300*3, true},
		{ring, 4, 4000, "a", 6*20 + 6000*2 + 3000*3, true},
		{ring, 4, 400, "b", 6*1000 + 300*3, true},
		{ring, 4, 400, "a+b", 6*1000 + 300*3, true},
		{ring, 4, 400, "a+none", 6*10 + 600 + 300*3, true},
		{ring, 4, 4, "none", 3 * 3, false},
		{ring, 1, 400, "none", 0, true},
		{shared, 2, 1000, "a", 5 + 1000*3, true},
	} {
		got, known := sample().Predict(c.a, c.n, c.m, 64<<10, c.wire)
		if math.Abs(got-c.want) > 1e-9*c.want || known != c.known {
			t.Errorf("%v of %d bytes on %d ranks over %s: got %v, %v, want %v, %v", c.a, c.m, c.n, c.wire, got, known, c.want, c.known)
		}
	}
}

func TestCandidatesStandInTheOrderOfTheirPredictedTimes(t *testing.T) {
	all := sample().Estimates(collective.VerbAllReduce, 8, 1<<20, 64<<10, "a")
	if len(all) != len(collective.Algorithms(collective.VerbAllReduce)) {
		t.Fatalf("%d candidates", len(all))
	}
	for i := 1; i < len(all); i++ {
		if all[i].Seconds < all[i-1].Seconds {
			t.Errorf("%v comes after %v", all[i], all[i-1])
		}
	}
	// The model has no costs for the wire "none", but it has costs for shared memory, so it can
	// predict the algorithms in shared memory.
	if all = sample().Estimates(collective.VerbBarrier, 8, 0, 0, "none"); all[0].Algorithm.Name() != "shared" || all[len(all)-1].Known {
		t.Errorf("got %v", all)
	}
}

func TestLinkCostsPassThroughTheSamples(t *testing.T) {
	points := []TimedMessage{{10, 5}, {20, 15}, {20, 15}, {40, 14}, {80, 94}}
	got := FitLinkCosts("w", points)
	want := []LinkCost{{"w", 20, 0, 1}, {"w", 40, 14, 0}, {"w", 0, 14, 1}}
	if len(got) != 3 || got[1] != want[1] || got[2].Beta != 2 || got[2].Alpha != 0 || got[0] != want[0] {
		t.Errorf("got %v", got)
	}
	if got := FitLinkCosts("w", points[:1]); !reflect.DeepEqual(got, []LinkCost{{"w", 0, 5, 0}}) {
		t.Errorf("one point gives %v", got)
	}
	if got := FitLinkCosts("w", nil); got != nil {
		t.Errorf("no point gives %v", got)
	}
}
