package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestParseFlags(t *testing.T) {
	o, err := parseFlags([]string{"-kill", "0@7,2@9", "-epochs", "3"}, io.Discard)
	if err != nil || o.epochs != 3 || !slices.Equal(o.kills, []death{{0, 7}, {2, 9}}) {
		t.Errorf("got %+v, %v", o, err)
	}
	for _, args := range [][]string{{"-kill", "1"}, {"-kill", "1@0"}, {"-kill", "-1@5"}, {"-kill", "1@2,"}, {"-epochs", "0"}, {"more"}} {
		if _, err := parseFlags(args, io.Discard); err == nil {
			t.Errorf("%q: got no error", args)
		}
	}
}

func TestASingleProcessTrainsAndDraws(t *testing.T) {
	o := options{epochs: 5, seed: 1, out: filepath.Join(t.TempDir(), "new")}
	var lines bytes.Buffer
	if err := run(t.Context(), o, &lines); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(lines.String(), "distance of the parameters: 0 ") {
		t.Errorf("got %q, want a distance of 0 to the same training", lines.String())
	}
	for _, format := range []string{"svg", "png"} {
		if info, err := os.Stat(filepath.Join(o.out, "elastic."+format)); err != nil || info.Size() < 2000 {
			t.Errorf("%s: got %v, %v, want a picture", format, info, err)
		}
	}
}

// A kill that does not happen, and a result that differs, must fail.
func TestReportFailsIfTheTrainingWasNotAsScheduled(t *testing.T) {
	o := options{epochs: 5, seed: 1, kills: []death{{0, 1000}}}
	if err := run(t.Context(), o, io.Discard); err == nil || !strings.Contains(err.Error(), "lost ranks: got 0, want 1") {
		t.Errorf("got %v, want the missing loss to be named", err)
	}
}
