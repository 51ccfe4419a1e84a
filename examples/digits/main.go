// Command digits trains a small neural network on real handwritten digits, data
// parallel, and verifies at the end that the result equals that of one process.
//
//	bin/tuttirun -np 4 bin/digits -out out
//	bin/tuttirun -np 4 bin/digits -out out -coordinator
//
// Read train.go first: a step computes the gradient of a share of the batch, averages it by an
// all-reduce, and changes the parameters by the same amount on every rank. teamOf, below, makes the
// collective calls.
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

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
	"github.com/tutti-go/tutti/transport/wires"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := job(ctx, os.Args[1:])
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "digits:", err)
		os.Exit(1)
	}
}

// job runs one rank, from Init to Close.
func job(ctx context.Context, args []string) (err error) {
	o, err := parseFlags(args, os.Stderr)
	if err != nil {
		return err
	}
	c, err := comm.Init(ctx, comm.WithTransport(wires.All()...), stores)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close(ctx)) }()
	t := teamOf(c)
	if o.named {
		co, err := coordinator.Start(ctx, c)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, co.Close(ctx)) }()
		t = t.with(co)
	}
	return run(ctx, t, o, os.Stderr, os.Stdout)
}

// with returns the team with a coordinator, which averages gradients by name in the background. It
// averages them in the order in which rank 0 learns that they are ready on all ranks.
func (t team) with(co *coordinator.Coordinator) team {
	g := coordinator.NewGradients[float64](co, comm.Mean)
	t.declare = func(name string, part []float64) { g.Declare(name, part) }
	t.begin = g.Ready
	t.finish = g.Wait
	t.overlap = g.Overlap
	return t
}

// teamOf returns the team that uses a communicator.
func teamOf(c *comm.Comm) team {
	return team{
		rank: c.Rank(),
		size: c.Size(),
		average: func(ctx context.Context, v []float64) error {
			return comm.AllReduce(ctx, c, v, comm.Mean)
		},
		copyFirst: func(ctx context.Context, v []float64) error {
			return comm.Broadcast(ctx, c, v, 0)
		},
		gather: func(ctx context.Context, mine []byte) ([]byte, error) {
			all := make([]byte, c.Size()*len(mine))
			return all, comm.AllGather(ctx, c, all, comm.From(mine))
		},
	}
}

// parseFlags parses the command line.
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
	flags.BoolVar(&o.named, "coordinator", o.named, "average the gradients layer by layer, while that of the next layer is computed")
	flags.BoolVar(&o.bar, "bar", o.bar, "show a progress bar on standard error; by default if that is a terminal")
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	switch {
	case flags.NArg() > 0:
		return options{}, fmt.Errorf("arguments: got %q, want none", flags.Arg(0))
	case o.epochs < 1 || o.batch < 1:
		return options{}, errors.New("-epochs and -batch: want at least 1")
	}
	return o, nil
}
