package collective

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/reduce"
)

// find is Find for names that are there.
func find(t testing.TB, verb Verb, name string) Algorithm {
	t.Helper()
	a, err := Find(verb, name)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestVerbsKeepTheirNumbersAndNames(t *testing.T) {
	for i, name := range []string{
		"allreduce", "reduce", "broadcast", "allgather", "allgatherv", "gather", "gatherv", "scatter", "scatterv",
		"reduce_scatter", "reduce_scatterv", "alltoall", "alltoallv", "barrier",
	} {
		v := Verb(i + 1)
		if v.String() != name {
			t.Errorf("verb %d is %q, want %q", i+1, v, name)
		}
		if got, err := ParseVerb(name); got != v || err != nil {
			t.Errorf("ParseVerb(%q) is %d and %v, want %d", name, got, err, v)
		}
	}
	if got := len(Verbs()); got != 14 {
		t.Errorf("there are %d verbs, want 14", got)
	}
	for _, v := range []Verb{0, 15, 255} {
		if v.String() != "" {
			t.Errorf("verb %d is %q, want none", v, v)
		}
	}
}

func TestSelectTakesTheFirstRuleThatCoversTheCall(t *testing.T) {
	ring, doubling, linear := find(t, VerbAllReduce, "ring"), find(t, VerbAllReduce, "recursive_doubling"), find(t, VerbAllReduce, "linear")
	table, err := NewTable([]Rule{
		{Algorithm: find(t, VerbBroadcast, "binomial")},
		{Algorithm: doubling, MaxBytes: 1000, MaxRanks: 4},
		{Algorithm: ring, MaxBytes: 5000},
		{Algorithm: linear, MaxRanks: 2},
		{Algorithm: ring},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		bytes, ranks int
		commutes     bool
		want         Algorithm
	}{
		{0, 4, true, doubling},
		{1000, 4, true, doubling},
		{1001, 4, true, ring},
		{1000, 5, true, ring},
		{5001, 2, true, linear},
		{5001, 3, true, ring},
		{1000, 4, false, doubling},
		{1001, 2, false, linear},
		{1001, 3, false, linear}, // no rule takes it: the most modest
	} {
		if got := table.Select(VerbAllReduce, c.bytes, c.ranks, c.commutes, false); got != c.want {
			t.Errorf("%d bytes on %d ranks, commutes %v: got %v, want %v", c.bytes, c.ranks, c.commutes, got, c.want)
		}
	}
}

func TestTheDefaultTableHasAnAlgorithmForEveryCall(t *testing.T) {
	table := DefaultTable()
	for _, verb := range Verbs() {
		for _, bytes := range []int{0, 1, 64 << 10, 64<<10 + 1, 1 << 40} {
			for ranks := 1; ranks <= 9; ranks++ {
				if a := table.Select(verb, bytes, ranks, true, false); a.Verb() != verb {
					t.Errorf("%v of %d bytes on %d ranks: got %v", verb, bytes, ranks, a)
				}
				if a := table.Select(verb, bytes, ranks, false, false); a.Verb() != verb || !a.Takes(reduce.RankOrder) {
					t.Errorf("%v of %d bytes on %d ranks, not commutative: got %v", verb, bytes, ranks, a)
				}
			}
		}
	}
	for _, c := range []struct {
		verb     Verb
		bytes    int
		commutes bool
		want     string
	}{
		{VerbAllReduce, 64 << 10, true, "allreduce:recursive_doubling"},
		{VerbAllReduce, 64<<10 + 1, true, "allreduce:ring"},
		{VerbAllReduce, 64<<10 + 1, false, "allreduce:pairwise"},
		{VerbReduce, 8, true, "reduce:binomial"},
		{VerbReduce, 8, false, "reduce:linear"},
		{VerbBroadcast, 8, true, "broadcast:binomial"},
	} {
		if got := table.Select(c.verb, c.bytes, 4, c.commutes, false).String(); got != c.want {
			t.Errorf("%v of %d bytes: got %s, want %s", c.verb, c.bytes, got, c.want)
		}
	}
}

func TestEveryVerbFallsBackOnWhatTakesEverything(t *testing.T) {
	empty := &Table{}
	for _, verb := range Verbs() {
		if a := empty.Select(verb, 1, 2, false, false); a.Verb() != verb || !a.Takes(reduce.RankOrder) {
			t.Errorf("%v falls back on %v", verb, a)
		}
	}
	if a := empty.Select(99, 1, 2, true, false); a != (Algorithm{}) {
		t.Errorf("verb 99 gets %v, want none", a)
	}
}

func TestForcedAlgorithmsGoBeforeTheRules(t *testing.T) {
	for _, text := range []string{
		"allreduce:linear,broadcast:binomial",
		" allreduce : linear , broadcast:binomial,",
		"allreduce:ring,allreduce:linear",
	} {
		table := DefaultTable()
		if err := table.Force(text); err != nil {
			t.Fatal(err)
		}
		if got, want := table.Select(VerbAllReduce, 1<<30, 4, true, false), find(t, VerbAllReduce, "linear"); got != want {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
		if got, want := table.Select(VerbAllGather, 1<<30, 4, true, false), find(t, VerbAllGather, "ring"); got != want {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
	}
	table := DefaultTable()
	if err := table.Force(""); err != nil || !reflect.DeepEqual(table, DefaultTable()) {
		t.Errorf("an empty text changed the table, or failed: %v", err)
	}
}

func TestForceSaysWhatThereIsAndChangesNothing(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string
	}{
		{"allreduce", []string{`"allreduce" is not of the form collective:algorithm`}},
		{"allreduce:fastest", []string{`"fastest"`, "allreduce", "linear, reduce_broadcast, recursive_doubling, ring, pairwise"}},
		{"broadcast:binomial,allsum:ring", []string{`"allsum"`, "allreduce, reduce, broadcast", "barrier"}},
		{":", []string{`no collective ""`}},
	} {
		table := DefaultTable()
		err := table.Force(c.text)
		if !errors.Is(err, fault.Misuse) {
			t.Errorf("%q: got %v, want fault.Misuse", c.text, err)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %q does not say %q", c.text, err, want)
			}
		}
		if !reflect.DeepEqual(table, DefaultTable()) {
			t.Errorf("%q changed the table", c.text)
		}
	}
}

func TestTablesAreBounded(t *testing.T) {
	rule := Rule{Algorithm: find(t, VerbAllReduce, "ring")}
	full := slices.Repeat([]Rule{rule}, MaxRules)
	if table, err := NewTable(full); err != nil || len(table.Rules()) != MaxRules {
		t.Errorf("a full table: %v", err)
	}
	for name, rules := range map[string][]Rule{"too many": append(full, rule), "no algorithm": {{}}} {
		if _, err := NewTable(rules); !errors.Is(err, fault.Misuse) {
			t.Errorf("%s: got %v, want fault.Misuse", name, err)
		}
	}
}

func TestATableKeepsNoPartOfWhatItWasGiven(t *testing.T) {
	rules := []Rule{{Algorithm: find(t, VerbAllReduce, "ring")}}
	table, err := NewTable(rules)
	if err != nil {
		t.Fatal(err)
	}
	rules[0].MaxBytes = 1
	table.Rules()[0].MaxBytes = 2
	if got := table.Rules()[0].MaxBytes; got != 0 {
		t.Errorf("the rule's limit became %d", got)
	}
}
