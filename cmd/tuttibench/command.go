package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/tutti-go/tutti/comm"
	linked "github.com/tutti-go/tutti/transport/wires"
)

// wireHelp describes the values of -transport.
const wireHelp = "`wire`: auto, shm, tcp, grpc, or memory with -local; tcp+verbs and grpc+verbs (also verbs) where built in (VERBS=1); by default TUTTI_TRANSPORT, or auto"

// A job says where the ranks of a command run.
type job struct {
	transport string // "" means TUTTI_TRANSPORT, or auto
	local     int    // the number of ranks within this process; 0 if this process is one rank
}

func (j *job) flags(f *flag.FlagSet) {
	f.StringVar(&j.transport, "transport", "", wireHelp)
	f.IntVar(&j.local, "local", 0, "run this many `ranks` as goroutines of one process; by default this process is a rank of its job")
}

// join joins the job, runs part with its communicator, and closes the communicator. With -local, it
// does so for each rank in this process.
func (j job) join(ctx context.Context, opts []comm.Option, part func(context.Context, *comm.Comm) error) error {
	opts = append(opts, comm.WithTransport(linked.All()...))
	if j.transport != "" {
		opts = append(opts, comm.WithTransportName(j.transport))
	}
	if j.local != 0 {
		return comm.Local(j.local, part, opts...)
	}
	c, err := comm.Init(ctx, opts...)
	if err != nil {
		return err
	}
	return errors.Join(part(ctx, c), c.Close(ctx))
}

// sizes are the vector sizes of a sweep, in bytes.
type sizes struct {
	min, max sizeFlag
	factor   int
}

func (s *sizes) flags(f *flag.FlagSet) {
	f.Var(&s.min, "min", "smallest vector in `bytes`; 4Ki, 64Mi, 1Gi are understood")
	f.Var(&s.max, "max", "largest vector in `bytes`")
	f.IntVar(&s.factor, "factor", s.factor, "each vector is this many `times` the one before")
}

func (s *sizes) check() error {
	switch {
	case s.min < 1 || s.max < s.min:
		return fmt.Errorf("-min %d and -max %d: want 1 <= min <= max", s.min, s.max)
	case tooLarge("max", s.max) != nil:
		return tooLarge("max", s.max)
	case s.factor < 2:
		return fmt.Errorf("-factor %d: want 2 or more", s.factor)
	}
	return nil
}

func (s *sizes) all() []int {
	var all []int
	for bytes := int(s.min); ; bytes *= s.factor {
		all = append(all, bytes)
		if bytes > int(s.max)/s.factor {
			return all
		}
	}
}

// subcommand runs the command whose name is the first of args. If there is no such command, known
// is false.
func subcommand(ctx context.Context, args []string, out, usage io.Writer) (known bool, err error) {
	if len(args) == 0 {
		return false, nil
	}
	switch args[0] {
	case "tune":
		o, err := parseTune(args[1:], usage)
		if err != nil {
			return true, err
		}
		return true, o.join(ctx, nil, func(ctx context.Context, c *comm.Comm) error { return tune(ctx, c, o, out, usage) })
	case "limits":
		o, err := parseLimits(args[1:], usage)
		if err != nil {
			return true, err
		}
		var opts []comm.Option
		if o.algorithm != "" {
			opts = append(opts, comm.WithAlgorithm("allreduce:"+o.algorithm))
		}
		return true, o.join(ctx, opts, func(ctx context.Context, c *comm.Comm) error { return limits(ctx, c, o, out) })
	case "explain":
		o, err := parseExplain(args[1:], usage)
		if err != nil {
			return true, err
		}
		return true, o.join(ctx, nil, func(_ context.Context, c *comm.Comm) error { return explain(c, o, out) })
	}
	return false, nil
}

// explainOptions are the flags of explain.
type explainOptions struct {
	job
	sizes
	op string
}

func parseExplain(args []string, usage io.Writer) (*explainOptions, error) {
	o := &explainOptions{sizes: sizes{min: 4, max: 64 << 20, factor: 64}}
	flags := flag.NewFlagSet("tuttibench explain", flag.ContinueOnError)
	o.job.flags(flags)
	o.sizes.flags(flags)
	flags.StringVar(&o.op, "op", "allreduce", "the `collective`")
	if err := parse(flags, args, usage); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return o, o.sizes.check()
}

// explain prints which algorithm the job would run, and why.
func explain(c *comm.Comm, o *explainOptions, out io.Writer) error {
	for _, bytes := range o.all() {
		x, err := c.Explain(o.op, bytes)
		if err != nil {
			return err
		}
		if c.Rank() == 0 {
			fmt.Fprint(out, x)
		}
	}
	return nil
}
