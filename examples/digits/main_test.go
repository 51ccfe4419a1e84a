package main

import (
	"errors"
	"flag"
	"io"
	"testing"
)

func TestFlagsRefuseNonsense(t *testing.T) {
	for _, args := range [][]string{{"-epochs", "0"}, {"-batch", "0"}, {"-rate", "fast"}, {"more"}} {
		if o, err := parseFlags(args, io.Discard); err == nil {
			t.Errorf("%v: got %+v, want an error", args, o)
		}
	}
	if _, err := parseFlags([]string{"-help"}, io.Discard); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("-help: got %v, want flag.ErrHelp", err)
	}
}

func TestFlagsSetTheOptions(t *testing.T) {
	got, err := parseFlags([]string{"-epochs=3", "-batch=7", "-rate=0.5", "-momentum=0", "-seed=9", "-out=x", "-bar", "-coordinator"}, io.Discard)
	want := options{settings{3, 7, 0.5, 0, 9}, "x", true, true}
	if err != nil || got != want {
		t.Errorf("got %+v and %v, want %+v", got, err, want)
	}
}
