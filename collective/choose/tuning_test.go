package choose

import (
	"bytes"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/golden"
)

func tuned(t testing.TB) *TuningFile {
	ring := find(t, collective.VerbAllReduce, "ring")
	return &TuningFile{
		Machine: "a \"machine\" <of> 2 processors", Commit: "0123456789ab", Command: "tuttirun -np 4 tuttibench tune", Measured: "2026-01-02T03:04:05Z",
		Model: Model{Gamma: 5e-11, Links: []LinkCost{{"tcp", 4096, 1e-5, 2e-10}, {"tcp", 0, 2e-5, 1e-10}, {Shared, 0, 0, 0}}},
		Rules: []collective.TableRule{
			{Algorithm: find(t, collective.VerbAllReduce, "recursive_doubling"), MaxBytes: 4096, MinRanks: 2, MaxRanks: 4, Wire: "tcp"},
			{Algorithm: ring, Segment: 128 << 10},
		},
		Measurements: []Measurement{{ring, "tcp", 4, 1 << 20, 128 << 10, 1.5e-3}, {find(t, collective.VerbBarrier, "shared"), "shm", 2, 0, 0, 1e-6}},
	}
}

func TestTheFileIsTheGoldenOne(t *testing.T) {
	file := filepath.Join("testdata", "tuning.golden")
	golden.Compare(t, file, string(tuned(t).Encode()))
}

func TestDecodeGivesBackWhatWasEncoded(t *testing.T) {
	for name, x := range map[string]*TuningFile{"all": tuned(t), "nothing": {}} {
		text := x.Encode()
		got, err := Decode(name, text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if again := got.Encode(); !bytes.Equal(again, text) {
			t.Errorf("%s: got\n%s, want\n%s", name, again, text)
		}
		if len(got.Rules) != len(x.Rules) || len(got.Measurements) != len(x.Measurements) {
			t.Errorf("%s: got %v, want %v", name, got, x)
		}
		for i, u := range got.Rules {
			if u != x.Rules[i] {
				t.Errorf("%s: rule %d is %v, want %v", name, i, u, x.Rules[i])
			}
		}
	}
}

func TestErrorsNameTheLineTheFieldAndTheRemedy(t *testing.T) {
	file := func(rest string) string { return "{\n \"tutti_tuning\": 1" + rest + "\n}\n" }
	rule := func(rest string) string {
		return file(",\n \"rules\": [\n  {\"op\": \"allreduce\", \"algorithm\": \"ring\"},\n  {" + rest + "}\n ]")
	}
	for name, c := range map[string]struct{ text, want string }{
		"empty":               {"", "f.json:1: got the end of the file"},
		"no JSON":             {"tuning", "f.json:1: got no JSON"},
		"no object":           {"[]", "f.json:1: got [, want an object"},
		"cut short":           {"{\n \"tutti_tuning\": 1,\n \"rules\": [", "f.json:3: rules: got the end of the file"},
		"no version":          {"{\n}", "f.json:2: tutti_tuning: the field is missing"},
		"another version":     {"{\"tutti_tuning\": 2}", "f.json:1: tutti_tuning: got 2, want 1; measure again"},
		"something after":     {file("") + "{}", "f.json:4: got something after the object"},
		"an unknown field":    {file(",\n \"ruels\": []"), "f.json:3: ruels: got an unknown field, want one of command"},
		"other letters":       {file(",\n \"Rules\": []"), "f.json:3: Rules: got an unknown field"},
		"a field twice":       {file(",\n \"tutti_tuning\": 1"), "f.json:3: tutti_tuning: got the field twice"},
		"a text as number":    {file(",\n \"gamma_us_per_MiB\": \"3\""), "f.json:3: gamma_us_per_MiB: got 3, want a number"},
		"a number below 0":    {file(",\n \"gamma_us_per_MiB\": -3"), "got -3, want a number from 0"},
		"a number as text":    {file(",\n \"machine\": 7"), "f.json:3: machine: got 7, want a text in quotes"},
		"too long a text":     {file(",\n \"machine\": \"" + strings.Repeat("x", maxText+1) + "\""), "want at most 4096"},
		"a link without wire": {file(",\n \"links\": [{\"alpha_us\": 1, \"beta_us_per_MiB\": 1}]"), "f.json:3: links[0].wire: the field is missing"},
		"no collective":       {rule(`"op": "allsum", "algorithm": "ring"`), "f.json:5: rules[1].op: "},
		"no algorithm":        {rule(`"op": "allreduce", "algorithm": "rung"`), "rules[1].algorithm: "},
		"names are told":      {rule(`"op": "allreduce", "algorithm": "rung"`), "want one of linear, reduce_broadcast"},
		"half a rank":         {rule(`"op": "allreduce", "algorithm": "ring", "min_ranks": 1.5`), "f.json:5: rules[1].min_ranks: got 1.5, want a whole number"},
		"no ranks":            {rule(`"op": "allreduce", "algorithm": "ring", "min_ranks": 5, "max_ranks": 4`), "f.json:5: rules[1]: "},
		"an odd segment":      {rule(`"op": "allreduce", "algorithm": "ring", "segment": 100`), "a multiple of 16 from 64 to 16777216"},
		"a list of numbers":   {file(",\n \"rules\": [1]"), "f.json:3: rules[0]: got 1, want an object"},
		"a link of no wire":   {file(",\n \"links\": [{\"wire\": \"\", \"alpha_us\": 1, \"beta_us_per_MiB\": 1}]"), "f.json:3: links[0].wire: got an empty name"},
		"a time without us":   {file(",\n \"times\": [{\"op\": \"barrier\", \"algorithm\": \"shared\", \"ranks\": 2}]"), "times[0].us: the field is missing"},
		"a time of one rank":  {file(",\n \"times\": [{\"op\": \"barrier\", \"algorithm\": \"shared\", \"ranks\": 1, \"us\": 1}]"), "times[0].ranks: got 1, want at least 2"},
		"a time in segments":  {file(",\n \"times\": [{\"op\": \"barrier\", \"algorithm\": \"shared\", \"ranks\": 2, \"us\": 1, \"segment\": 64}]"), "sends no messages"},
		"too many rules":      {file(",\n \"rules\": [" + strings.Repeat(`{"op": "barrier", "algorithm": "shared"},`, collective.MaxRules) + `{"op": "barrier", "algorithm": "shared"}]`), "got more than"},
		"too large":           {file("") + strings.Repeat(" ", MaxFile), "want at most 4194304"},
	} {
		got, err := Decode("f.json", []byte(c.text))
		if got != nil || !errors.Is(err, fault.Misuse) || !strings.Contains(err.Error(), c.want) || strings.Count(err.Error(), fault.Misuse.Error()) != 1 {
			t.Errorf("%s: got %v and %v, want fault.Misuse, said once, with %q", name, got, err, c.want)
		}
	}
}

// FuzzDecode passes arbitrary bytes to Decode. Decode must return fault.Misuse or a tuning file.
// The file must make a valid table, and stay the same after Encode and Decode.
func FuzzDecode(f *testing.F) {
	f.Add(tuned(f).Encode())
	f.Add([]byte(`{"tutti_tuning": 1}`))
	f.Add([]byte(`{"tutti_tuning":1,"links":[{"wire":"","alpha_us":0,"beta_us_per_MiB":0}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		x, err := Decode("f", text)
		if err != nil {
			if x != nil || !errors.Is(err, fault.Misuse) {
				t.Fatalf("refused with %v and %v", x, err)
			}
			return
		}
		first := x.Encode()
		again, err := Decode("f", first)
		if err != nil {
			t.Fatalf("%v in\n%s", err, first)
		}
		if second := again.Encode(); !bytes.Equal(first, second) {
			t.Fatalf("got\n%s, want\n%s", second, first)
		}
		if _, err := collective.NewTable(x.Rules, collective.DefaultRules()); err != nil {
			t.Fatal(err)
		}
		for _, u := range Rules(x.Measurements) {
			if err := u.Check(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
