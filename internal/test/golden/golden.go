// Package golden is what tests compare with files that lie beside them: what code
// gives, and transcripts of what it does. It is for tests only.
//
// A test that uses it has a flag: -update writes the files anew, for a reader to
// look at the difference before it is committed. It does not know what the files
// hold.
package golden

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Flags of a test can be added only before it has begun.
var update = flag.Bool("update", false, "write the files that the tests compare with anew")

// Compare fails the test unless the file holds got, to the byte. With -update it
// writes the file, and its folder, first.
func Compare(t testing.TB, file, got string) {
	t.Helper()
	if *update {
		write(t, file, got)
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got == string(want) {
		return
	}
	line, is, was := firstDifference(got, string(want))
	t.Errorf("%s:%d: got %q, want %q (go test -update writes it anew)", file, line, is, was)
}

func write(t testing.TB, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// firstDifference is the first line, from 1 on, in which the texts differ.
func firstDifference(got, want string) (line int, is, was string) {
	for {
		line++
		var more, wanted bool
		is, got, more = strings.Cut(got, "\n")
		was, want, wanted = strings.Cut(want, "\n")
		if is != was || !more || !wanted {
			return line, is, was
		}
	}
}

// Replay runs a subtest for each file that the pattern matches, of which there must
// be one. A file is a transcript: inputs, with the outputs that they have after
// them. replay carries the inputs out and returns the transcript that this gives,
// which the file must hold.
func Replay(t *testing.T, pattern string, replay func(transcript []byte) ([]byte, error)) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts %s: %v", pattern, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), filepath.Ext(file)), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got, err := replay(bytes.Clone(text))
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			Compare(t, file, string(got))
		})
	}
}
