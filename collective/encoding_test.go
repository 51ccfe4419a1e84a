package collective

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/golden"
)

// samples returns the tables of the golden file, in its order.
func samples(t testing.TB) []*Table {
	forced := DefaultTable()
	if err := forced.Force("allreduce:linear@256Ki,barrier:dissemination"); err != nil {
		t.Fatal(err)
	}
	measured, err := NewTable([]TableRule{
		{Algorithm: find(t, VerbAllReduce, "recursive_doubling"), MaxBytes: 1 << 40, MinRanks: 3, Wire: "shm+tcp"},
		{Algorithm: find(t, VerbAllReduce, "ring"), Segment: 128 << 10, Wire: "tcp"},
	}, []TableRule{
		{Algorithm: find(t, VerbReduceScatterV, "pairwise"), MaxRanks: 1 << 20},
	})
	if err != nil {
		t.Fatal(err)
	}
	return []*Table{{}, measured, forced}
}

func TestTheWireFormIsTheGoldenOne(t *testing.T) {
	var got strings.Builder
	for _, table := range samples(t)[:2] {
		fmt.Fprintln(&got, hex.EncodeToString(table.AppendEncoded(nil)))
	}
	golden.Compare(t, filepath.Join("testdata", "table.golden"), got.String())
}

func TestParseTableGivesBackWhatWasAppended(t *testing.T) {
	for i, table := range samples(t) {
		got, err := ParseTable(table.AppendEncoded(nil))
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
		table.forced[a.Verb()] = selection{algorithm: a}
	})
	if got := len(longest.String()); got > maxAlgorithmName {
		t.Errorf("%v has %d bytes, want at most %d", longest, got, maxAlgorithmName)
	}
	table.rules = slices.Repeat([]TableRule{{Algorithm: longest, Wire: strings.Repeat("w", MaxWireName)}}, MaxRules)
	wire := table.AppendEncoded(nil)
	if len(wire) > MaxEncodedTable {
		t.Errorf("the largest table has %d bytes, want at most %d", len(wire), MaxEncodedTable)
	}
	if _, err := ParseTable(wire); err != nil {
		t.Errorf("the largest table: %v", err)
	}
}

func TestParseTableRefusesWhatIsNotTheWireForm(t *testing.T) {
	good := samples(t)[2].AppendEncoded(nil)
	with := func(at int, b ...byte) []byte { return slices.Concat(good[:at], b, good[at+len(b):]) }
	cases := map[string][]byte{
		"another version":       with(0, 1),
		"a byte too many":       append(bytes.Clone(good), 0),
		"a rule too few":        with(1, good[1]+1),
		"too many rules":        with(1, 1, (MaxRules+1)>>8),
		"more measured":         with(3, good[1]+1),
		"an odd segment":        with(tableHeaderSize+16, 7),
		"a segment of shared":   with(tableHeaderSize+16, 64),
		"too long a wire":       slices.Concat(good[:tableHeaderSize+20], []byte{MaxWireName + 1}, make([]byte, MaxWireName+1), good[tableHeaderSize+21:]),
		"too long":              append(bytes.Clone(good), make([]byte, MaxEncodedTable)...),
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

// FuzzParseTable checks that ParseTable either refuses its input, or returns a table that works and
// can be encoded again.
func FuzzParseTable(f *testing.F) {
	for _, table := range samples(f) {
		f.Add(table.AppendEncoded(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		table, err := ParseTable(b)
		if err != nil {
			if table != nil || !errors.Is(err, fault.Mismatch) {
				t.Fatalf("refused with %v and %v", table, err)
			}
			return
		}
		again, err := ParseTable(table.AppendEncoded(nil))
		if err != nil || !reflect.DeepEqual(table, again) {
			t.Fatalf("told on: %v and %v, want %v", again, err, table)
		}
		for _, verb := range Verbs() {
			if a := table.Chooser(4, "tcp").Choose(verb, len(b), true, false).Algorithm; a.Verb() != verb {
				t.Fatalf("%v for %v", a, verb)
			}
		}
	})
}

// FuzzForce checks that Force either refuses a text with fault.Misuse, or forces the algorithms
// that the text names.
func FuzzForce(f *testing.F) {
	f.Add("allreduce:ring, broadcast:binomial,")
	f.Add("allreduce:")
	f.Add("allreduce:ring@64Ki,allreduce:shared@64,barrier:shared@1000000000000")
	f.Fuzz(func(t *testing.T, text string) {
		table := &Table{}
		if err := table.Force(text); err != nil {
			if !errors.Is(err, fault.Misuse) {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		var again []string
		for _, p := range table.forced {
			if p.segment != 0 {
				again = append(again, fmt.Sprintf("%v@%d", p.algorithm, p.segment))
			} else if p != (selection{}) {
				again = append(again, p.algorithm.String())
			}
		}
		other := &Table{}
		if err := other.Force(strings.Join(again, ",")); err != nil || !reflect.DeepEqual(table, other) {
			t.Fatalf("%q forces %v, which forces something else: %v", text, again, err)
		}
	})
}
