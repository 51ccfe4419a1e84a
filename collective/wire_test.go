package collective

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/fault"
)

var update = flag.Bool("update", false, "rewrite the golden file and docs/algorithms.md")

// samples are the tables of the golden file, in its order.
func samples(t testing.TB) []*Table {
	forced := DefaultTable()
	if err := forced.Force("allreduce:linear,barrier:dissemination"); err != nil {
		t.Fatal(err)
	}
	measured, err := NewTable([]Rule{
		{find(t, VerbAllReduce, "recursive_doubling"), 1 << 40, 0},
		{find(t, VerbReduceScatterV, "pairwise"), 0, 1 << 20},
	})
	if err != nil {
		t.Fatal(err)
	}
	return []*Table{{}, measured, forced}
}

func TestTheWireFormIsTheGoldenOne(t *testing.T) {
	var got strings.Builder
	for _, table := range samples(t)[:2] {
		fmt.Fprintln(&got, hex.EncodeToString(table.AppendWire(nil)))
	}
	checkFile(t, filepath.Join("testdata", "table.golden"), got.String())
}

// checkFile compares a file that is generated from the code, or writes it.
func checkFile(t testing.TB, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is not what the code gives; go test ./collective -update writes it anew\ngot\n%s", file, got)
	}
}

func TestParseTableGivesBackWhatWasAppended(t *testing.T) {
	for i, table := range samples(t) {
		got, err := ParseTable(table.AppendWire(nil))
		if err != nil || !reflect.DeepEqual(got, table) {
			t.Errorf("table %d: got %v and %v, want %v", i, got, err, table)
		}
	}
}

func TestTheWireFormIsBounded(t *testing.T) {
	longest := Algorithm{}
	table := &Table{}
	everyAlgorithm(func(a Algorithm) {
		if len(a.String()) > len(longest.String()) {
			longest = a
		}
		table.forced[a.Verb()] = a
	})
	if got := len(longest.String()); got > maxName {
		t.Errorf("%v has %d bytes, want at most %d", longest, got, maxName)
	}
	table.rules = slices.Repeat([]Rule{{Algorithm: longest}}, MaxRules)
	wire := table.AppendWire(nil)
	if len(wire) > MaxWire {
		t.Errorf("the largest table has %d bytes, want at most %d", len(wire), MaxWire)
	}
	if _, err := ParseTable(wire); err != nil {
		t.Errorf("the largest table: %v", err)
	}
}

func TestParseTableRefusesWhatIsNotTheWireForm(t *testing.T) {
	good := samples(t)[2].AppendWire(nil)
	cases := map[string][]byte{
		"another version":       append([]byte{2}, good[1:]...),
		"a byte too many":       append(bytes.Clone(good), 0),
		"a rule too few":        append([]byte{1, good[1] + 1}, good[2:]...),
		"too many rules":        append([]byte{1, MaxRules + 1}, good[2:]...),
		"too long":              append(bytes.Clone(good), make([]byte, MaxWire)...),
		"an unknown algorithm":  bytes.Replace(good, []byte("ring"), []byte("rung"), 1),
		"an unknown collective": bytes.Replace(good, []byte("reduce:"), []byte("reduct:"), 1),
	}
	for n := range good {
		cases[fmt.Sprintf("the first %d bytes", n)] = good[:n]
	}
	for name, b := range cases {
		if table, err := ParseTable(b); table != nil || !errors.Is(err, fault.Mismatch) {
			t.Errorf("%s: got %v and %v, want fault.Mismatch", name, table, err)
		}
	}
}

// FuzzParseTable checks that any bytes either are refused, or give a table that
// can be told on and that selects.
func FuzzParseTable(f *testing.F) {
	for _, table := range samples(f) {
		f.Add(table.AppendWire(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		table, err := ParseTable(b)
		if err != nil {
			if table != nil || !errors.Is(err, fault.Mismatch) {
				t.Fatalf("refused with %v and %v", table, err)
			}
			return
		}
		again, err := ParseTable(table.AppendWire(nil))
		if err != nil || !reflect.DeepEqual(table, again) {
			t.Fatalf("told on: %v and %v, want %v", again, err, table)
		}
		for _, verb := range Verbs() {
			if a := table.Select(verb, len(b), 4, true, false); a.Verb() != verb {
				t.Fatalf("%v for %v", a, verb)
			}
		}
	})
}

// FuzzForce checks that any text either is refused as misuse, or forces what its
// own form says.
func FuzzForce(f *testing.F) {
	f.Add("allreduce:ring, broadcast:binomial,")
	f.Add("allreduce:")
	f.Fuzz(func(t *testing.T, text string) {
		table := &Table{}
		if err := table.Force(text); err != nil {
			if !errors.Is(err, fault.Misuse) {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		var again []string
		for _, a := range table.forced {
			if a != (Algorithm{}) {
				again = append(again, a.String())
			}
		}
		other := &Table{}
		if err := other.Force(strings.Join(again, ",")); err != nil || !reflect.DeepEqual(table, other) {
			t.Fatalf("%q forces %v, which forces something else: %v", text, again, err)
		}
	})
}
