// Command mixed trains one model in two ways at once, as is common for recommenders. The few dense
// weights of the model are on every worker and averaged by AllReduce. Its table of embeddings is on
// a parameter server: workers pull the rows that they need, and push gradients for these rows.
//
//	bin/tuttirun -np 4 bin/mixed            # ranks 0 to 2 work, rank 3 serves
//	bin/mixed -local 4                      # the same, in one process
//
// Read work in work.go. At the end worker 0 trains the same model alone and compares.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/ps"
	"github.com/tutti-go/tutti/transport/wires"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := job(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "mixed:", err)
		os.Exit(1)
	}
}

// job runs one rank of a job, or all ranks of a local one.
func job(ctx context.Context, args []string, out, usage io.Writer) (err error) {
	flags := flag.NewFlagSet("mixed", flag.ContinueOnError)
	flags.SetOutput(usage)
	local := flags.Int("local", 0, "run this many `ranks` as goroutines of one process")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *local > 0 {
		return comm.Local(*local, func(ctx context.Context, c *comm.Comm) error {
			return run(ctx, c, comm.Mean, out)
		})
	}
	c, err := comm.Init(ctx, comm.WithTransport(wires.All()...))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close(ctx)) }()
	return run(ctx, c, comm.Mean, out)
}

// run runs one rank. The parameter average is the operator for the workers' dense gradients.
func run(ctx context.Context, c *comm.Comm, average comm.Op, out io.Writer) error {
	if c.Size() < 2 {
		return fmt.Errorf("ranks: got %d, want a server and a worker: bin/tuttirun -np 2 bin/mixed", c.Size())
	}
	return ps.Run(ctx, c, ps.Servers(1), func(ctx context.Context, cl *ps.Client) error {
		return work(ctx, cl, average, out)
	}, nil)
}
