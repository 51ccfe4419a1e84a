package choose

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/reduce"
)

func TestRulesFollowTheFastest(t *testing.T) {
	ring, doubling := find(t, collective.VerbAllReduce, "ring"), find(t, collective.VerbAllReduce, "recursive_doubling")
	pairwise, shared := find(t, collective.VerbAllReduce, "pairwise"), find(t, collective.VerbAllReduce, "shared")
	barrier := find(t, collective.VerbBarrier, "dissemination")
	at := func(a collective.Algorithm, bytes, segment int, seconds float64) Measurement {
		return Measurement{a, "tcp", 4, bytes, segment, seconds}
	}
	rule := func(a collective.Algorithm, maxBytes uint64, segment uint32) collective.TableRule {
		return collective.TableRule{Algorithm: a, MaxBytes: maxBytes, MinRanks: 2, MaxRanks: 7, Segment: segment, Wire: "tcp"}
	}
	// The constant table is the largest size for which the default table chooses
	// recursive_doubling. Above 8 MiB the default table does not choose ring.
	const table = 64 << 10
	for _, c := range []struct {
		name  string
		times []Measurement
		want  []collective.TableRule
	}{
		{"nothing", nil, nil},
		{"one algorithm", []Measurement{at(barrier, 0, 0, 1)}, []collective.TableRule{rule(barrier, 0, 0)}},
		{"a change half-way", []Measurement{at(doubling, 100, 0, 1), at(pairwise, 100, 0, 2), at(doubling, 10000, 0, 2), at(pairwise, 10000, 0, 1)},
			[]collective.TableRule{rule(doubling, 1000, 0), rule(pairwise, 20000, 0)}},
		{"a change that is not worth it", []Measurement{at(pairwise, 100, 512, 1), at(pairwise, 100, 1024, 2), at(pairwise, 10000, 512, 1.02), at(pairwise, 10000, 1024, 1)},
			[]collective.TableRule{rule(pairwise, 20000, 512)}},
		{"no gain on the default table", []Measurement{at(doubling, 100, 0, 1.07), at(pairwise, 100, 0, 1), at(doubling, 10000, 0, 1.07), at(pairwise, 10000, 0, 1)},
			[]collective.TableRule{rule(doubling, table, 0)}},
		{"the default table's again, when there is no gain any more", []Measurement{at(doubling, 100, 0, 2), at(pairwise, 100, 0, 1), at(doubling, 10000, 0, 1.07), at(pairwise, 10000, 0, 1)},
			[]collective.TableRule{rule(pairwise, 1000, 0), rule(doubling, table, 0)}},
		{"the default table's change where it has it", []Measurement{at(doubling, 16<<10, 0, 1), at(ring, 16<<10, 0, 2), at(pairwise, 16<<10, 0, 2), at(doubling, 1<<20, 0, 3), at(ring, 1<<20, 0, 1), at(pairwise, 1<<20, 0, 2)},
			[]collective.TableRule{rule(doubling, table, 0), rule(ring, 8<<20, 0), rule(pairwise, 8<<20, 0)}},
		{"one for operators that do not commute, too", []Measurement{at(ring, 100, 0, 1), at(doubling, 100, 0, 3), at(pairwise, 100, 0, 2)},
			[]collective.TableRule{rule(ring, 200, 0), rule(pairwise, 200, 0)}},
		{"one where nothing is shared, too", []Measurement{at(shared, 100, 0, 1), at(ring, 100, 0, 2), at(pairwise, 100, 0, 4), at(doubling, 100, 0, 3)},
			[]collective.TableRule{rule(shared, 200, 0), rule(ring, 200, 0), rule(doubling, 200, 0)}},
		{"not what the fastest makes superfluous", []Measurement{at(doubling, 100, 0, 1), at(shared, 100, 0, 2)},
			[]collective.TableRule{rule(doubling, 200, 0)}},
		{"the usual segment, when another is hardly better", []Measurement{at(doubling, 10000, 1024, 0.95), at(doubling, 10000, 0, 1)},
			[]collective.TableRule{rule(doubling, table, 0)}},
		{"another segment", []Measurement{at(doubling, 100, 0, 1), at(doubling, 10000, 1024, 1), at(doubling, 10000, 2048, 2)},
			[]collective.TableRule{rule(doubling, 1000, 0), rule(doubling, 20000, 1024)}},
	} {
		if got := Rules(c.times); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got\n%v, want\n%v", c.name, got, c.want)
		}
	}
}

func TestRulesReachFromOneNumberOfRanksToTheNext(t *testing.T) {
	ring := find(t, collective.VerbAllGather, "ring")
	var times []Measurement
	for _, n := range []int{8, 2, 4} {
		times = append(times, Measurement{ring, "shm", n, 1000, 0, 1})
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
	older := []Measurement{{ring, "tcp", 2, 1, 0, 1}, {ring, "tcp", 4, 1, 0, 2}, {ring, "shm", 2, 1, 0, 3}}
	newer := []Measurement{{linear, "tcp", 2, 1, 0, 4}}
	if got, want := Merge(older, newer), []Measurement{older[1], older[2], newer[0]}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestComparisonsAreBetweenTheDefaultAndItsReplacement(t *testing.T) {
	ring, doubling := find(t, collective.VerbAllReduce, "ring"), find(t, collective.VerbAllReduce, "recursive_doubling")
	pairwise, shared := find(t, collective.VerbAllReduce, "pairwise"), find(t, collective.VerbAllReduce, "shared")
	at := func(a collective.Algorithm, segment int, seconds float64) Measurement {
		return Measurement{a, "shm", 4, 100, segment, seconds}
	}
	for _, c := range []struct {
		name  string
		times []Measurement
		want  []Comparison
	}{
		{"nothing", nil, nil},
		{"the default is not there", []Measurement{at(ring, 0, 1)}, nil},
		{"the default is ahead", []Measurement{at(ring, 0, 2), at(doubling, 0, 1)}, nil},
		{"the default is level", []Measurement{at(ring, 0, 1), at(doubling, 0, 1.08)}, nil},
		{"another is ahead, also of operators that do not commute", []Measurement{at(ring, 0, 2), at(doubling, 0, 3), at(pairwise, 0, 1)},
			[]Comparison{{at(doubling, 0, 3), at(pairwise, 0, 1)}}},
		{"another in each situation", []Measurement{at(shared, 0, 5), at(ring, 0, 1), at(doubling, 0, 3), at(pairwise, 0, 2)},
			[]Comparison{{at(shared, 0, 5), at(ring, 0, 1)}, {at(doubling, 0, 3), at(ring, 0, 1)}, {at(shared, 0, 5), at(pairwise, 0, 2)}, {at(doubling, 0, 3), at(pairwise, 0, 2)}}},
		{"others are ahead, and of those that are level one has the usual segments", []Measurement{at(doubling, 0, 10), at(ring, 64, 8), at(ring, 0, 8.6)},
			[]Comparison{{at(doubling, 0, 10), at(ring, 0, 8.6)}}},
		{"the same in other segments", []Measurement{at(doubling, 64, 1), at(doubling, 0, 2)}, []Comparison{{at(doubling, 0, 2), at(doubling, 64, 1)}}},
	} {
		if got := Comparisons(c.times); !slices.Equal(got, c.want) {
			t.Errorf("%s: got\n%v, want\n%v", c.name, got, c.want)
		}
	}
}

// For any measurements, the rules must never choose a method that was slower at a measured size
// than the default table's method.
func TestRulesAreNowhereSlowerThanTheDefaultTable(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	sizes := []int{4, 4 << 10, 64 << 10, 1 << 20, 64 << 20}
	for range 100 {
		var times []Measurement
		for _, size := range sizes {
			for _, verb := range collective.Verbs() {
				for _, a := range collective.Algorithms(verb) {
					if !a.Hierarchical() {
						times = append(times, Measurement{a, "shm", 2, size, 0, 1 + r.Float64()})
					}
				}
			}
		}
		tuned, err := collective.NewTable(Rules(times), collective.DefaultRules())
		if err != nil {
			t.Fatal(err)
		}
		elapsed := func(c *collective.Chooser, x Measurement, s requirement) float64 {
			k := c.Choose(x.Algorithm.Verb(), x.Bytes, s.order == reduce.Commutative, s.shared)
			i := slices.IndexFunc(times, func(t Measurement) bool { return t.Algorithm == k.Algorithm && t.Bytes == x.Bytes })
			return times[i].Seconds
		}
		measured, usual := tuned.Chooser(2, "shm"), collective.DefaultTable().Chooser(2, "shm")
		for _, x := range times {
			for _, s := range requirements() {
				if got, most := elapsed(measured, x, s), elapsed(usual, x, s); got > most {
					t.Fatalf("%v of %d bytes, %v: the rules' choice takes %v, the default table's %v", x.Algorithm.Verb(), x.Bytes, s, got, most)
				}
			}
		}
	}
}
