package main

import (
	"strings"
	"testing"

	"github.com/tutti-go/tutti/transport/verbs"
)

func TestWithoutVerbsTheRemedyIsPrinted(t *testing.T) {
	if verbs.Built {
		// Reason: this test checks the text of a build without verbs, which `make test` makes.
		t.Skip("this build has verbs, and so no reason to print the remedy; the default build runs this test")
	}
	var out, problems strings.Builder
	if status := run(&out, &problems); status != 1 || !strings.Contains(problems.String(), "make build VERBS=1") {
		t.Errorf("status %d, %q", status, problems.String())
	}
}

func TestVariableThatCannotBeIsNamed(t *testing.T) {
	t.Setenv("TUTTI_VERBS_PORT", "one")
	var out, problems strings.Builder
	if status := run(&out, &problems); status != 1 || !strings.Contains(problems.String(), `TUTTI_VERBS_PORT="one"`) {
		t.Errorf("status %d, %q", status, problems.String())
	}
}
