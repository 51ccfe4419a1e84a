package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCSVBeginsWithItsHeaderAndRemarksGoElsewhere(t *testing.T) {
	for op, remarks := range map[string]int{"allreduce": 1, "coordinator": 2} {
		var out, notes bytes.Buffer
		args := "-local 2 -max 64 -time 0 -format csv -op " + op
		if err := run(t.Context(), strings.Fields(args), &out, &notes); err != nil {
			t.Fatal(err)
		}
		if first, _, _ := strings.Cut(out.String(), "\n"); first != columns {
			t.Errorf("%s: the first line is %q, want the header", op, first)
		}
		if got := notes.String(); !strings.HasPrefix(got, "# ") || strings.Count(got, "\n") != remarks {
			t.Errorf("%s: got the remarks %q, want %d", op, got, remarks)
		}
	}
}

func TestAWrongFlagGetsOneLineWithItsRemedyAndNoUsage(t *testing.T) {
	for args, want := range map[string]string{
		"-iterations 999999999999": "to 100000000",
		"-iterations 4":            "want 5 to",
		"-time 0.15":               "150ms",
		"tune -time 3":             "150ms",
		"limits -time x":           "150ms",
		"-max 9999999Gi":           "at most",
		"-min 9999999Gi":           "min <= max",
		"limits -max 9999999Gi":    "at most",
		"limits -cold 9999999Gi":   "at most",
		"-min 2000Gi -max 2000Gi":  "at most",
		"-nonsense":                "nonsense",
		"explain -op":              "-op",
		"tune -factor many -o x.y": "many",
	} {
		var usage bytes.Buffer
		err := run(t.Context(), strings.Fields(args), io.Discard, &usage)
		switch {
		case err == nil:
			t.Errorf("%s: got no error", args)
		case !strings.Contains(err.Error(), want), strings.Contains(err.Error(), "\n"):
			t.Errorf("%s: got %q, want one line with %q", args, err, want)
		case usage.Len() > 0:
			t.Errorf("%s: prints %q beside its error", args, usage.String())
		}
	}
}

func TestAFileThatCannotBeMadeEndsTheSweepBeforeItBegins(t *testing.T) {
	dir := t.TempDir()
	blocked := filepath.Join(dir, "file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, flag := range []string{"-plot", "-cpuprofile"} {
		var out bytes.Buffer
		err := run(t.Context(), []string{"-local", "2", "-max", "64", "-time", "0", flag, filepath.Join(blocked, "x")}, &out, io.Discard)
		if err == nil || !strings.Contains(err.Error(), flag) || out.Len() > 0 {
			t.Errorf("got error %v after printing %q, want one that names %s, and no figures", err, out.String(), flag)
		}
	}
	kept := filepath.Join(dir, "kept.svg")
	if err := os.WriteFile(kept, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{kept, filepath.Join(dir, "new", "x.svg")} {
		if err := checkWritable(path); err != nil {
			t.Error(err)
		}
	}
	if text, err := os.ReadFile(kept); string(text) != "old" {
		t.Errorf("a look at a file left %q in it, error %v", text, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "new", "x.svg")); err == nil {
		t.Error("a look has left a file behind")
	}
}
