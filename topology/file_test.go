package topology

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/fault"
)

func TestATopologyFileIsRead(t *testing.T) {
	text := "# hall 2\nn0 a\n\tn1\t a # the old one\n\r\n  n2 b"
	path := filepath.Join(t.TempDir(), "hall")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := ReadFile(path)
	if want := (Racks{"n0": "a", "n1": "a", "n2": "b"}); err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v and %v, want %v", got, err, want)
	}
}

func TestATopologyFileThatIsWrongIsRefusedByItsLine(t *testing.T) {
	long := strings.Repeat("x", MaxName+1)
	many := new(bytes.Buffer)
	for i := range MaxHosts + 1 {
		fmt.Fprintf(many, "n%d a\n", i)
	}
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "got no host"},
		{"only comments", "# nothing\n\n", "got no host"},
		{"one word", "n0 a\nn1\n", "line 2: got 1 words"},
		{"three words", "n0 a b\n", "line 1: got 3 words"},
		{"twice", "n0 a\n\nn0 a\n", `line 3: host "n0" is also on line 1`},
		{"a long name", "n0 " + long, "line 1: name"},
		{"a byte that is none of a name", "n0 a/b", `line 1: name "a/b": got the byte '/'`},
		{"binary", "n\x00 a", "line 1: name"},
		{"not ASCII", "nö a", "line 1: name"},
		{"too many hosts", many.String(), fmt.Sprintf("line %d: got %d hosts", MaxHosts+1, MaxHosts+1)},
		{"too long", strings.Repeat("#", MaxFile+1), "more than 1048576 bytes"},
	} {
		if _, err := ParseFile([]byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want what says %q", c.name, err, c.want)
		}
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadFile(path); !errors.Is(err, fault.Misuse) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s, from a file: got %v", c.name, err)
		}
	}
	if _, err := ReadFile(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fault.Misuse) {
		t.Errorf("no file: got %v", err)
	}
}

func TestRacksGoToTheRanksOfTheirHosts(t *testing.T) {
	racks := Racks{"n0": "a", "n1": "b", "n2": "c"}
	for _, c := range []struct{ places, want, err string }{
		{"n1 n0 n1", "b/n1 a/n0 b/n1", ""},
		{"b/n1 n0", "b/n1 a/n0", ""},
		{"n0 n7", "", `host "n7" of rank 1 is not listed`},
		{"n0 a/n1", "", `rack of host "n1": got "b" from the file and "a" from rank 1`},
	} {
		places := at(c.places)
		err := racks.Apply(places)
		if c.err != "" {
			if !errors.Is(err, fault.Misuse) || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: got %v, want what says %q", c.places, err, c.err)
			}
			continue
		}
		if err != nil || !slices.Equal(places, at(c.want)) {
			t.Errorf("%s: got %v and %v, want %v", c.places, places, err, c.want)
		}
	}
}

func TestRecordsRoundTrip(t *testing.T) {
	long := strings.Repeat("h", 100)
	want := []Place{{Host: "n0", Rack: "a"}, {}, {Host: long[:MaxName], Rack: long[:MaxName]}}
	var b []byte
	for _, p := range []Place{{Host: "n0", Rack: "a"}, {}, {Host: long, Rack: long}} {
		b = AppendRecord(b, p)
	}
	if got, err := ParseRecords(b); err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v and %v, want %v", got, err, want)
	}
	for name, change := range map[string]func(b []byte) []byte{
		"cut short":       func(b []byte) []byte { return b[:len(b)-1] },
		"a name too long": func(b []byte) []byte { b[fieldSize] = MaxName + 1; return b },
	} {
		if got, err := ParseRecords(change(slices.Clone(b))); err == nil {
			t.Errorf("%s: got %v", name, got)
		}
	}
	b[1] = '\n'
	if got, err := ParseRecords(b); err != nil || got[0].Host != "?0" {
		t.Errorf("got %v and %v, want what can be printed", got, err)
	}
}

func FuzzParseFile(f *testing.F) {
	for _, text := range []string{"", "n0 a\nn1 b # c\n", "n0", "n0 a\nn0 b", "\x00 \xff"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		racks, err := ParseFile(text)
		if err != nil {
			return
		}
		var again bytes.Buffer
		var places []Place
		for host, rack := range racks {
			if CheckName(host) != nil || CheckName(rack) != nil {
				t.Fatalf("%q in %q was let through", host, rack)
			}
			fmt.Fprintln(&again, host, rack)
			places = append(places, Place{Host: host})
		}
		if same, err := ParseFile(again.Bytes()); again.Len() <= MaxFile && (err != nil || !maps.Equal(same, racks)) {
			t.Fatalf("got %v and %v, want %v", same, err, racks)
		}
		if err := racks.Apply(places); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzParseRecords(f *testing.F) {
	f.Add(AppendRecord(nil, Place{Host: "n0", Rack: "a"}))
	f.Add(make([]byte, RecordSize))
	f.Add([]byte{65})
	f.Fuzz(func(t *testing.T, b []byte) {
		places, err := ParseRecords(b)
		if err != nil {
			return
		}
		l := New(places)
		if l.Size() != len(places) || len(l.Order()) != len(places) {
			t.Fatalf("%d places make %v", len(places), l)
		}
	})
}
