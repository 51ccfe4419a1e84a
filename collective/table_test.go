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

// find is like Find, but fails the test if the name does not exist.
func find(t testing.TB, verb Verb, name string) Algorithm {
	t.Helper()
	a, err := Find(verb, name)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// selected returns a table's choice on a communicator without a name for its wires.
func selected(t *Table, verb Verb, bytes, ranks int, commutes, sharing bool) Algorithm {
	return t.Chooser(ranks, "").Choose(verb, bytes, commutes, sharing).Algorithm
}

func TestVerbsKeepTheirNumbersAndNames(t *testing.T) {
	for i, name := range []string{
		"allreduce", "reduce", "broadcast", "allgather", "allgatherv", "gather", "gatherv", "scatter", "scatterv",
		"reduce_scatter", "reduce_scatterv", "alltoall", "alltoallv", "barrier", "scan", "exscan",
	} {
		v := Verb(i + 1)
		if v.String() != name {
			t.Errorf("verb %d is %q, want %q", i+1, v, name)
		}
		if got, err := ParseVerb(name); got != v || err != nil {
			t.Errorf("ParseVerb(%q) is %d and %v, want %d", name, got, err, v)
		}
	}
	if got := len(Verbs()); got != 16 {
		t.Errorf("there are %d verbs, want 16", got)
	}
	for _, v := range []Verb{0, 17, 255} {
		if v.String() != "" {
			t.Errorf("verb %d is %q, want none", v, v)
		}
	}
}

func TestChooseFollowsTheFirstRuleThatCoversTheCall(t *testing.T) {
	ring, doubling, linear := find(t, VerbAllReduce, "ring"), find(t, VerbAllReduce, "recursive_doubling"), find(t, VerbAllReduce, "linear")
	table, err := NewTable([]TableRule{
		{Algorithm: find(t, VerbBroadcast, "binomial")},
		{Algorithm: doubling, MaxBytes: 1000, MaxRanks: 4},
		{Algorithm: ring, MaxBytes: 5000},
		{Algorithm: linear, MaxRanks: 2},
		{Algorithm: ring},
	}, nil)
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
		{1001, 3, false, linear}, // no rule covers the call: the fallback
	} {
		if got := selected(table, VerbAllReduce, c.bytes, c.ranks, c.commutes, false); got != c.want {
			t.Errorf("%d bytes on %d ranks, commutes %v: got %v, want %v", c.bytes, c.ranks, c.commutes, got, c.want)
		}
	}
}

func TestTheDefaultTableHasAnAlgorithmForEveryCall(t *testing.T) {
	table := DefaultTable()
	for _, verb := range Verbs() {
		for _, bytes := range []int{0, 1, 64 << 10, 64<<10 + 1, 1 << 40} {
			for ranks := 1; ranks <= 9; ranks++ {
				if a := selected(table, verb, bytes, ranks, true, false); a.Verb() != verb {
					t.Errorf("%v of %d bytes on %d ranks: got %v", verb, bytes, ranks, a)
				}
				if a := selected(table, verb, bytes, ranks, false, false); a.Verb() != verb || !a.SupportsOrder(reduce.RankOrder) {
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
		if got := selected(table, c.verb, c.bytes, 4, c.commutes, false).String(); got != c.want {
			t.Errorf("%v of %d bytes: got %s, want %s", c.verb, c.bytes, got, c.want)
		}
	}
}

func TestEveryVerbFallsBackOnAnAlgorithmWithoutConditions(t *testing.T) {
	empty := &Table{}
	for _, verb := range Verbs() {
		if a := selected(empty, verb, 1, 2, false, false); a.Verb() != verb || !a.SupportsOrder(reduce.RankOrder) {
			t.Errorf("%v falls back on %v", verb, a)
		}
	}
	if a := selected(empty, 99, 1, 2, true, false); a != (Algorithm{}) {
		t.Errorf("verb 99 gets %v, want none", a)
	}
}

func TestForcedAlgorithmsGoBeforeTheRules(t *testing.T) {
	for _, text := range []string{
		"allreduce:linear,broadcast:binomial",
		" allreduce : linear , broadcast:binomial,",
	} {
		table := DefaultTable()
		if err := table.Force(text); err != nil {
			t.Fatal(err)
		}
		if got, want := selected(table, VerbAllReduce, 1<<30, 4, true, false), find(t, VerbAllReduce, "linear"); got != want {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
		if got, want := selected(table, VerbAllGather, 1<<30, 4, true, false), find(t, VerbAllGather, "ring"); got != want {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
	}
	table := DefaultTable()
	for _, text := range []string{"", " "} {
		if err := table.Force(text); err != nil || !reflect.DeepEqual(table, DefaultTable()) {
			t.Errorf("%q changed the table, or failed: %v", text, err)
		}
	}
}

func TestForceListsTheAlgorithmsAndChangesNothing(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string
	}{
		{"allreduce:ring@", []string{`size: got "", want a number of bytes such as 64, 64Ki or 4Mi`}},
		{"allreduce:ring@0", []string{"leave out @"}},
		{"allreduce:ring@72", []string{"a multiple of 16 from 64 to 16777216"}},
		{"allreduce:ring@32Mi", []string{"a multiple of 16 from 64 to 16777216"}},
		{"allreduce:ring@16777216Gi", []string{"a multiple of 16"}},
		{"allreduce:ring@17179869184Gi", []string{"want a number of bytes"}},
		{"allreduce:shared@64Ki", []string{"sends no messages"}},
		{"allreduce", []string{`got "allreduce", want collective:algorithm`}},
		{"allreduce:fastest", []string{`"fastest"`, "allreduce", "linear, reduce_broadcast, recursive_doubling, ring, pairwise"}},
		{"broadcast:binomial,allsum:ring", []string{`"allsum"`, "allreduce, reduce, broadcast", "barrier"}},
		{":", []string{`collective: got ""`}},
		{",", []string{`got ",", want a list`}},
		{"allreduce:ring,allreduce:linear", []string{"got two algorithms for allreduce"}},
		{"barrier:dissemination,allreduce:ring,allreduce:ring", []string{"got two algorithms for allreduce"}},
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
	rule := TableRule{Algorithm: find(t, VerbAllReduce, "ring")}
	full := slices.Repeat([]TableRule{rule}, MaxRules)
	if table, err := NewTable(full[:5], full[5:]); err != nil || len(table.Rules()) != MaxRules {
		t.Errorf("a full table: %v", err)
	}
	if _, err := NewTable(full, []TableRule{rule}); !errors.Is(err, fault.Misuse) {
		t.Errorf("too many: got %v, want fault.Misuse", err)
	}
}

func TestRulesThatCannotBeAreRefused(t *testing.T) {
	ring := find(t, VerbAllReduce, "ring")
	for name, u := range map[string]TableRule{
		"no algorithm":              {},
		"no number of ranks":        {Algorithm: ring, MinRanks: 5, MaxRanks: 4},
		"a small segment":           {Algorithm: ring, Segment: MinSegment - 16},
		"a large segment":           {Algorithm: ring, Segment: MaxSegment + 16},
		"an odd segment":            {Algorithm: ring, Segment: 1000},
		"segments without messages": {Algorithm: find(t, VerbAllReduce, shared), Segment: 1024},
		"a long name":               {Algorithm: ring, Wire: strings.Repeat("w", MaxWireName+1)},
	} {
		if _, err := NewTable([]TableRule{{Algorithm: ring}, u}, nil); !errors.Is(err, fault.Misuse) || !strings.Contains(err.Error(), "rule 2") {
			t.Errorf("%s: got %v, want fault.Misuse that names the rule", name, err)
		}
	}
	good := TableRule{Algorithm: ring, MinRanks: 4, MaxRanks: 4, Segment: MaxSegment, Wire: "shm+tcp"}
	if err := good.Check(); err != nil {
		t.Errorf("%+v is refused: %v", good, err)
	}
}

func TestRulesHoldForTheirWireAndRanksOnly(t *testing.T) {
	ring, linear := find(t, VerbAllReduce, "ring"), find(t, VerbAllReduce, "linear")
	table, err := NewTable([]TableRule{
		{Algorithm: ring, MinRanks: 3, MaxRanks: 5, Wire: "tcp", Segment: 1024},
		{Algorithm: ring, MinRanks: 3, Segment: 2048},
		{Algorithm: linear, MaxRanks: 2, Wire: "shm"},
	}, []TableRule{{Algorithm: ring, MaxRanks: 2}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		ranks int
		wire  string
		want  Choice
	}{
		{2, "shm", Choice{linear, 0, Tuned, 3}},
		{2, "tcp", Choice{ring, 0, Default, 1}},
		{3, "tcp", Choice{ring, 1024, Tuned, 1}},
		{5, "tcp", Choice{ring, 1024, Tuned, 1}},
		{6, "tcp", Choice{ring, 2048, Tuned, 2}},
		{3, "shm+tcp", Choice{ring, 2048, Tuned, 2}},
		{1, "", Choice{ring, 0, Default, 1}},
	} {
		if got := table.Chooser(c.ranks, c.wire).Choose(VerbAllReduce, 100, true, true); got != c.want {
			t.Errorf("%d ranks, wire %q: got %+v, want %+v", c.ranks, c.wire, got, c.want)
		}
	}
	if got := (&Table{}).Chooser(2, "").Choose(VerbAllReduce, 1, true, true); got != (Choice{Algorithm: linear, Reason: Fallback}) {
		t.Errorf("an empty table gives %+v", got)
	}
}

func TestForcingChangesACopy(t *testing.T) {
	table := DefaultTable()
	forced, err := table.WithForced("allreduce:ring@128Ki")
	if err != nil {
		t.Fatal(err)
	}
	if want := (Choice{find(t, VerbAllReduce, "ring"), 128 << 10, Forced, 0}); forced.Chooser(2, "").Choose(VerbAllReduce, 1, true, true) != want {
		t.Errorf("the copy does not give %+v", want)
	}
	if !reflect.DeepEqual(table, DefaultTable()) {
		t.Error("the table itself was changed")
	}
	if _, err := table.WithForced("allreduce:rung"); !errors.Is(err, fault.Misuse) {
		t.Errorf("got %v, want fault.Misuse", err)
	}
}

func TestATableKeepsNoPartOfWhatItWasGiven(t *testing.T) {
	rules := []TableRule{{Algorithm: find(t, VerbAllReduce, "ring")}}
	table, err := NewTable(rules, nil)
	if err != nil {
		t.Fatal(err)
	}
	rules[0].MaxBytes = 1
	table.Rules()[0].MaxBytes = 2
	if got := table.Rules()[0].MaxBytes; got != 0 {
		t.Errorf("the rule's limit became %d", got)
	}
}

func BenchmarkChoose(b *testing.B) {
	c := DefaultTable().Chooser(4, "tcp")
	for b.Loop() {
		if got := c.Choose(VerbAllReduce, 1<<20, true, false); got.Algorithm == (Algorithm{}) {
			b.Fatal("nothing was chosen")
		}
	}
}
