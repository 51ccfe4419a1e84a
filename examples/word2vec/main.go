// Command word2vec learns vectors of words from the documentation of Go's standard library, with a
// parameter server and an allreduce in one job.
//
//	bin/tuttirun -np 6 bin/word2vec -out out    # ranks 0 to 3 work, ranks 4 and 5 serve
//	bin/word2vec -local 6 -out out              # the same, in one process
//
// Each word has a row in two tables on the servers. In each step a worker pulls the rows of the
// words in its part of the text, and pushes gradients of these rows. The model also has a small
// dense matrix, which every worker holds. Its gradient is averaged by AllReduce.
//
// Read training.step in train.go first. The mathematics is in model.go. At the end the program
// checks the vectors with the pairs of words in pairs.txt.
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
	"github.com/tutti-go/tutti/ps"
	"github.com/tutti-go/tutti/transport/wires"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := job(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "word2vec:", err)
		os.Exit(1)
	}
}

// options are the settings of the command line, and functions that tests replace.
type options struct {
	local   int    // ranks in this process; 0 for one rank of a job
	servers int    // how many ranks serve: the last ones of the job
	source  string // the folder of the text
	epochs  int
	seeds   int    // how many trainings to run, with the seeds 1, 2, …
	out     string // the folder for the pictures; "" for none
	bar     bool   // show a progress bar on the screen

	push    func(table *ps.Table[float32], words []int64, gradient []float32) *ps.Handle
	average func(ctx context.Context, team *comm.Comm, v []float32) error
}

// defaults holds the values of options that the command line does not set.
var defaults = options{
	servers: 2,
	epochs:  3,
	seeds:   1,
	push:    (*ps.Table[float32]).IPush,
	average: func(ctx context.Context, team *comm.Comm, v []float32) error {
		return comm.AllReduce(ctx, team, v, comm.Mean)
	},
}

// job runs one rank of a job, or all ranks of a local one.
func job(ctx context.Context, args []string, out, screen io.Writer) (err error) {
	o, err := parseFlags(args, screen)
	if err != nil {
		return err
	}
	if o.local > 0 {
		return comm.Local(o.local, func(ctx context.Context, c *comm.Comm) error {
			return run(ctx, c, o, out, screen)
		})
	}
	c, err := comm.Init(ctx, comm.WithTransport(wires.All()...))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close(ctx)) }()
	return run(ctx, c, o, out, screen)
}

// run runs one rank.
func run(ctx context.Context, c *comm.Comm, o options, out, screen io.Writer) error {
	if c.Size() <= o.servers {
		return fmt.Errorf("ranks: got %d, want a worker beside the %d servers: bin/tuttirun -np %d bin/word2vec",
			c.Size(), o.servers, o.servers+4)
	}
	return ps.Run(ctx, c, ps.Servers(o.servers), func(ctx context.Context, cl *ps.Client) error {
		return work(ctx, cl, o, out, screen)
	}, nil)
}

// parseFlags parses the command line.
func parseFlags(args []string, usage io.Writer) (options, error) {
	o := defaults
	flags := flag.NewFlagSet("word2vec", flag.ContinueOnError)
	flags.SetOutput(usage)
	flags.IntVar(&o.local, "local", o.local, "run this many `ranks` as goroutines of one process")
	flags.IntVar(&o.servers, "servers", o.servers, "how many ranks serve")
	flags.StringVar(&o.source, "src", o.source, "`folder` of Go source; by default the standard library's")
	flags.IntVar(&o.epochs, "epochs", o.epochs, "how often to walk through the text")
	flags.IntVar(&o.seeds, "seeds", o.seeds, "how many trainings to run, with the seeds 1, 2, …")
	flags.StringVar(&o.out, "out", o.out, "`folder` for the pictures; empty for none")
	flags.BoolVar(&o.bar, "bar", term.IsTerminal(int(os.Stderr.Fd())), "show a progress bar on standard error; by default if that is a terminal")
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	switch {
	case flags.NArg() > 0:
		return options{}, fmt.Errorf("arguments: got %q, want none", flags.Arg(0))
	case o.servers < 1 || o.epochs < 1 || o.seeds < 1:
		return options{}, errors.New("-servers, -epochs and -seeds: want at least 1")
	}
	return o, nil
}
