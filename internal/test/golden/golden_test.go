package golden

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A spy is a testing.TB that records how it failed.
type spy struct {
	testing.TB
	failed string
}

func (s *spy) Helper() {}

func (s *spy) Errorf(format string, args ...any) { s.failed = fmt.Sprintf(format, args...) }

func (s *spy) Fatal(args ...any) {
	s.failed = fmt.Sprint(args...)
	panic(s)
}

// compare returns the failure that Compare reports, or "" if the texts are equal.
func compare(t *testing.T, file, got string) (failed string) {
	s := &spy{TB: t}
	defer func() {
		if p := recover(); p != nil && p != s {
			panic(p)
		}
		failed = s.failed
	}()
	Compare(s, file, got)
	return ""
}

func updating(t *testing.T) {
	*update = true
	t.Cleanup(func() { *update = false })
}

func TestADifferenceIsReportedByItsLine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.golden")
	if err := os.WriteFile(file, []byte("one\ntwo\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for got, want := range map[string]string{
		"one\ntwo\n":        "",
		"one\n2\n":          `x.golden:2: got "2", want "two"`,
		"one\ntwo":          `x.golden:2: got "two", want "two"`, // no newline at the end
		"one\n":             `x.golden:2: got "", want "two"`,
		"one\ntwo\nthree\n": `x.golden:3: got "three", want ""`,
		"":                  `x.golden:1: got "", want "one"`,
	} {
		failed := compare(t, file, got)
		if (failed == "") != (want == "") || !strings.Contains(failed, want) {
			t.Errorf("%q: failed with %q, want %q", got, failed, want)
		}
	}
	if failed := compare(t, file+"s", "x"); !strings.Contains(failed, "x.goldens") {
		t.Errorf("a missing file: failed with %q, want its name", failed)
	}
}

func TestUpdateWritesTheFileAndItsFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "testdata", "new.golden")
	updating(t)
	for _, got := range []string{"first\n", "second\n"} {
		if failed := compare(t, file, got); failed != "" {
			t.Errorf("failed with %q", failed)
		}
		if text, err := os.ReadFile(file); err != nil || string(text) != got {
			t.Errorf("the file holds %q and %v, want %q", text, err, got)
		}
	}
}

// double replays a transcript of numbers. It writes the double of each number after the number.
func double(transcript []byte) ([]byte, error) {
	var out bytes.Buffer
	for line := range strings.Lines(string(transcript)) {
		var n int
		if strings.HasPrefix(line, ">") {
			continue
		}
		if _, err := fmt.Sscan(line, &n); err != nil {
			return nil, err
		}
		fmt.Fprintf(&out, "%d\n> %d\n", n, 2*n)
	}
	return out.Bytes(), nil
}

func TestEveryTranscriptIsReplayed(t *testing.T) {
	folder, replayed := t.TempDir(), 0
	for name, text := range map[string]string{"a": "1\n> 2\n", "b": "3\n> 6\n4\n> 8\n"} {
		if err := os.WriteFile(filepath.Join(folder, name+".txt"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	Replay(t, filepath.Join(folder, "*.txt"), func(transcript []byte) ([]byte, error) {
		replayed++
		return double(transcript)
	})
	if replayed != 2 {
		t.Errorf("%d transcripts were replayed, want 2", replayed)
	}
}

func TestUpdateWritesTheOutputsOfATranscript(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.txt")
	if err := os.WriteFile(file, []byte("1\n2\n> 5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	updating(t)
	Replay(t, file, double)
	if text, err := os.ReadFile(file); err != nil || string(text) != "1\n> 2\n2\n> 4\n" {
		t.Errorf("the file holds %q and %v", text, err)
	}
}
