// Command elastic trains the network of example digits while ranks are killed and others take their
// places. At the end it verifies that the result equals that of a training without losses.
//
//	bin/tuttirun -np 4 --restart-ranks 2 --min-np 2 --blacklist-cooldown-range 100ms 1s \
//		bin/elastic -kill 0@100,3@150,1@1000 -out out
//
// Read run first, and then training.go: the state of a training, and how it makes a step.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/elastic"
	"github.com/tutti-go/tutti/transport/wires"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	o, err := parseFlags(os.Args[1:], os.Stderr)
	if err == nil {
		err = run(ctx, o, os.Stdout)
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "elastic:", err)
		os.Exit(1)
	}
}

// options are the settings of the command line.
type options struct {
	epochs int
	seed   uint64
	out    string  // the folder for the curve; "" for none
	hold   string  // a folder; see training.hold
	kills  []death // in the order of their steps
}

// A death is one kill of the schedule. When the training has reached the step, the process that
// then has the rank kills itself.
type death struct{ rank, step int }

// run trains until every rank of the job is done. Only rank 0 prints. After a loss another process
// may become rank 0.
func run(ctx context.Context, o options, lines io.Writer) error {
	t, err := newTraining(o)
	if err != nil {
		return err
	}
	train := func(ctx context.Context, job *elastic.Job) error {
		c := job.Comm()
		for t.data.Epoch() < o.epochs {
			if err := t.await(ctx, job); err != nil {
				return err
			}
			total := 0
			compute := func(ctx context.Context) (err error) {
				t.dieIfScheduled(c)
				total, err = t.gradient(ctx, c)
				return err
			}
			apply := func() { t.descend(total, c.Size()) }
			if err := job.Step(ctx, compute, apply); err != nil {
				return err
			}
			if t.step%t.stepsPerEpoch == 0 {
				// Commit lets waiting processes join. After a loss the training does not need it,
				// because Step rolls nothing back.
				if err := job.Commit(ctx); err != nil {
					return err
				}
			}
		}
		if c.Rank() > 0 {
			return nil
		}
		return t.report(ctx, c, lines)
	}
	onReset := func(ctx context.Context, job *elastic.Job) error {
		lost, joined, err := t.count(ctx, job.Comm())
		if err == nil && job.Comm().Rank() == 0 {
			fmt.Fprintf(lines, "step %d: %d lost, %d joined, so %d ranks go on\n", t.step, lost, joined, t.size)
		}
		return err
	}
	return elastic.Run(ctx, t.state, train, elastic.WithOnReset(onReset), elastic.WithComm(comm.WithTransport(wires.All()...)))
}

// parseFlags parses the command line.
func parseFlags(args []string, usage io.Writer) (options, error) {
	o := options{epochs: 40, seed: 1}
	flags := flag.NewFlagSet("elastic", flag.ContinueOnError)
	flags.SetOutput(usage)
	flags.IntVar(&o.epochs, "epochs", o.epochs, "how often to walk through the images")
	flags.Uint64Var(&o.seed, "seed", o.seed, "decides the split, the first parameters and the batches")
	flags.StringVar(&o.out, "out", o.out, "folder for the curve; empty for none")
	flags.StringVar(&o.hold, "hold", o.hold, "after each epoch, wait for a file with its number in this folder")
	kills := flags.String("kill", "", "rank@step,...: the process that has this rank at this step kills itself, in this order")
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	switch {
	case flags.NArg() > 0:
		return options{}, fmt.Errorf("arguments: got %q, want none", flags.Arg(0))
	case o.epochs < 1:
		return options{}, fmt.Errorf("-epochs: got %d, want at least 1", o.epochs)
	case *kills == "":
		return o, nil
	}
	for text := range strings.SplitSeq(*kills, ",") {
		rank, step, _ := strings.Cut(text, "@")
		r, err := strconv.Atoi(rank)
		s, err2 := strconv.Atoi(step)
		if errors.Join(err, err2) != nil || r < 0 || s < 1 {
			return options{}, fmt.Errorf("-kill: got %q, want rank@step with a step of at least 1", text)
		}
		o.kills = append(o.kills, death{r, s})
	}
	return o, nil
}
