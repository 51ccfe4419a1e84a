package choose

import (
	"reflect"
	"testing"

	"github.com/tutti-go/tutti/collective"
)

func TestRulesFollowTheFastest(t *testing.T) {
	ring, doubling := find(t, collective.VerbAllReduce, "ring"), find(t, collective.VerbAllReduce, "recursive_doubling")
	pairwise, shared := find(t, collective.VerbAllReduce, "pairwise"), find(t, collective.VerbAllReduce, "shared")
	barrier := find(t, collective.VerbBarrier, "dissemination")
	at := func(a collective.Algorithm, bytes, segment int, seconds float64) Time {
		return Time{a, "tcp", 4, bytes, segment, seconds}
	}
	rule := func(a collective.Algorithm, maxBytes uint64, segment uint32) collective.Rule {
		return collective.Rule{Algorithm: a, MaxBytes: maxBytes, MinRanks: 2, MaxRanks: 7, Segment: segment, Wire: "tcp"}
	}
	for _, c := range []struct {
		name  string
		times []Time
		want  []collective.Rule
	}{
		{"nothing", nil, nil},
		{"one algorithm", []Time{at(barrier, 0, 0, 1)}, []collective.Rule{rule(barrier, 0, 0)}},
		{"a change half-way", []Time{at(doubling, 100, 0, 1), at(pairwise, 100, 0, 2), at(doubling, 10000, 0, 2), at(pairwise, 10000, 0, 1)},
			[]collective.Rule{rule(doubling, 1000, 0), rule(pairwise, 0, 0)}},
		{"a change that is not worth it", []Time{at(doubling, 100, 0, 1), at(pairwise, 100, 0, 2), at(doubling, 10000, 0, 1.02), at(pairwise, 10000, 0, 1)},
			[]collective.Rule{rule(doubling, 0, 0)}},
		{"one for operators that do not commute, too", []Time{at(ring, 100, 0, 1), at(doubling, 100, 0, 3), at(pairwise, 100, 0, 2)},
			[]collective.Rule{rule(ring, 0, 0), rule(pairwise, 0, 0)}},
		{"one where nothing is shared, too", []Time{at(shared, 100, 0, 1), at(ring, 100, 0, 2), at(pairwise, 100, 0, 4), at(doubling, 100, 0, 3)},
			[]collective.Rule{rule(shared, 0, 0), rule(ring, 0, 0), rule(doubling, 0, 0)}},
		{"not what the fastest makes superfluous", []Time{at(doubling, 100, 0, 1), at(shared, 100, 0, 2)},
			[]collective.Rule{rule(doubling, 0, 0)}},
		{"the usual segment, when another is hardly better", []Time{at(doubling, 10000, 1024, 0.95), at(doubling, 10000, 0, 1)},
			[]collective.Rule{rule(doubling, 0, 0)}},
		{"another segment", []Time{at(doubling, 100, 0, 1), at(doubling, 10000, 1024, 1), at(doubling, 10000, 2048, 2)},
			[]collective.Rule{rule(doubling, 1000, 0), rule(doubling, 0, 1024)}},
	} {
		if got := Rules(c.times); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got\n%v, want\n%v", c.name, got, c.want)
		}
	}
}

func TestRulesReachFromOneNumberOfRanksToTheNext(t *testing.T) {
	ring := find(t, collective.VerbAllGather, "ring")
	var times []Time
	for _, n := range []int{8, 2, 4} {
		times = append(times, Time{ring, "shm", n, 1000, 0, 1})
	}
	var got [][2]uint32
	for _, u := range Rules(times) {
		got = append(got, [2]uint32{u.MinRanks, u.MaxRanks})
	}
	if want := [][2]uint32{{2, 2}, {3, 4}, {5, 15}}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestNewerTimesReplaceThoseOfTheSameJob(t *testing.T) {
	ring, linear := find(t, collective.VerbAllReduce, "ring"), find(t, collective.VerbAllReduce, "linear")
	older := []Time{{ring, "tcp", 2, 1, 0, 1}, {ring, "tcp", 4, 1, 0, 2}, {ring, "shm", 2, 1, 0, 3}}
	newer := []Time{{linear, "tcp", 2, 1, 0, 4}}
	if got, want := Merge(older, newer), []Time{older[1], older[2], newer[0]}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
