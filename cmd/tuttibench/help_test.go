package main

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/internal/version"
)

func TestVersionIsPrintedWithoutAJob(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), []string{"-V"}, &out, io.Discard); err != nil || out.String() != version.Line("tuttibench")+"\n" {
		t.Errorf("got %q, %v, want %q", out.String(), err, version.Line("tuttibench"))
	}
}

func TestHelpListsCommandsOperationsAlgorithmsAndFlags(t *testing.T) {
	var text bytes.Buffer
	if err := run(t.Context(), []string{"-h"}, io.Discard, &text); !errors.Is(err, flag.ErrHelp) {
		t.Fatalf("got %v, want flag.ErrHelp", err)
	}
	lines := map[string]string{}
	for line := range strings.Lines(text.String()) {
		if words := strings.Fields(line); len(words) > 0 {
			lines[words[0]] = line
		}
	}
	for _, op := range slices.Concat(specialOps, opNames) {
		if lines[op] == "" {
			t.Errorf("operation %s is not listed in\n%s", op, text.String())
		}
		verb, err := collective.ParseVerb(op)
		if err != nil {
			continue
		}
		for _, a := range collective.Algorithms(verb) {
			if !strings.Contains(lines[op], " "+a.Name()) {
				t.Errorf("%v is not listed: %q", a, lines[op])
			}
		}
	}
	for _, c := range commands {
		if !strings.Contains(text.String(), "tuttibench "+c.name+" ") {
			t.Errorf("command %s is not listed", c.name)
		}
	}
	for _, flag := range []string{"-op", "-plot", "-format", "-local"} {
		if lines[flag] == "" {
			t.Errorf("flag %s is not listed", flag)
		}
	}
}

// Every command that help lists must exist.
func TestEveryCommandOfTheHelpIsOne(t *testing.T) {
	for _, c := range commands {
		var text bytes.Buffer
		known, err := subcommand(t.Context(), []string{c.name, "-h"}, io.Discard, &text)
		if !known || !errors.Is(err, flag.ErrHelp) || !strings.Contains(text.String(), "Usage of tuttibench "+c.name) {
			t.Errorf("%s -h: known %t, error %v, and prints %q", c.name, known, err, text.String())
		}
	}
	if known, _ := subcommand(t.Context(), []string{"speed"}, io.Discard, io.Discard); known {
		t.Error("a command that there is not is taken for one")
	}
}
