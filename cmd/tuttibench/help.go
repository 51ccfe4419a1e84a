package main

import (
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/tutti-go/tutti/collective"
)

// A command is selected by the first argument.
type command struct{ name, does string }

var commands = []command{
	{"tune", "time all algorithms and segments, and write a file for TUTTI_TUNING"},
	{"limits", "compare an allreduce with the shortest time that memory allows"},
	{"explain", "print which algorithm would run and why, and the predicted times of the others"},
}

// help prints all commands, operations and flags.
func help(flags *flag.FlagSet, out io.Writer) {
	fmt.Fprint(out, "usage: tuttibench [flags]            time one operation over a sweep of sizes\n")
	for _, c := range commands {
		fmt.Fprintf(out, "       tuttibench %-7s [flags]    %s\n", c.name, c.does)
	}
	fmt.Fprint(out, "\nEach rank of a job runs it: tuttirun -np 4 tuttibench -op allreduce; or -local 4 does\nwith goroutines. Each command has flags of its own: tuttibench tune -h lists them.\n")
	fmt.Fprint(out, "\noperations, and their algorithms:\n")
	for _, op := range opNames {
		fmt.Fprintf(out, "  %-14s  %s\n", op, strings.Join(algorithmNames(op), " "))
	}
	fmt.Fprintf(out, "  %-14s  of -model's tensors: %s\n", named, strings.Join(models(), " "))
	fmt.Fprintf(out, "  %-14s  of a vector on -servers parameter servers, beside pingpong and allreduce\n", dense)
	fmt.Fprintf(out, "  %-14s  of -indices rows of a table of -rows on -servers parameter servers, beside pingpong\n", sparse)
	fmt.Fprintf(out, "  %-14s  steps of -model: its tensors on -servers parameter servers, beside computation\n", training)
	fmt.Fprint(out, "\nflags:\n")
	flags.PrintDefaults()
}

// algorithmNames returns the algorithms of an operation, or a dash if it has none.
func algorithmNames(op string) []string {
	verb, err := collective.ParseVerb(op)
	if err != nil {
		return []string{"–"}
	}
	var names []string
	for _, a := range collective.Algorithms(verb) {
		names = append(names, a.Name())
	}
	return names
}
