// Package golden compares what a test produces with a file under testdata, and replays transcripts.
// It is for tests only, and does not know what the files hold.
//
// A test that uses it has a flag: -update rewrites the files. Read the difference before you commit
// it.
package golden

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// update is a variable of the package, because flags of a test must exist before the test starts.
var update = flag.Bool("update", false, "rewrite the files that the tests compare with")

// Compare fails the test unless the file holds exactly got. With -update it first writes the file,
// and its folder. The failure shows the first line that differs, which usually shows the reason.
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
	t.Errorf("%s:%d: got %q, want %q (go test -update rewrites it)", file, line, is, was)
}

// write writes the file, and its folder.
func write(t testing.TB, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// firstDifference returns the number of the first line that differs, counted from 1, and the line
// in both texts.
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

// Replay runs a subtest for each file that the pattern matches, and fails if there is none. A file
// is a transcript: inputs, each followed by its outputs. The function replay runs the inputs and
// returns the resulting transcript, which must equal the file.
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
