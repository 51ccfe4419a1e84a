// Command digits trains a small neural network on real handwritten digits. The
// training core is data parallel over a team; this main runs a team of one.
//
// Read train.go first: a step is a share of the batch, an average over the team,
// and the same move of all parameters on every rank.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"

	"golang.org/x/term"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	o, err := parseFlags(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		err = run(ctx, alone(), o, os.Stderr, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "digits:", err)
		os.Exit(1)
	}
}

// parseFlags reads the command line, and refuses what makes no sense.
func parseFlags(args []string, usage io.Writer) (options, error) {
	o := defaults
	o.bar = term.IsTerminal(int(os.Stderr.Fd()))
	flags := flag.NewFlagSet("digits", flag.ContinueOnError)
	flags.SetOutput(usage)
	flags.IntVar(&o.epochs, "epochs", o.epochs, "how often to walk through the images")
	flags.IntVar(&o.batch, "batch", o.batch, "images per step, over all ranks together")
	flags.Float64Var(&o.rate, "rate", o.rate, "learning rate of the first step; it falls to 0")
	flags.Float64Var(&o.momentum, "momentum", o.momentum, "share of the last move that the next one keeps")
	flags.Uint64Var(&o.seed, "seed", o.seed, "decides the split, the first parameters and the batches")
	flags.StringVar(&o.out, "out", o.out, "folder for the curves")
	flags.BoolVar(&o.bar, "bar", o.bar, "show a progress bar on standard error; by default if that is a terminal")
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	switch {
	case flags.NArg() > 0:
		return options{}, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case o.epochs < 1 || o.batch < 1:
		return options{}, errors.New("-epochs and -batch must be at least 1")
	}
	return o, nil
}
