package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/atomicwriter"

	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/collective/choose"
	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/internal/version"
)

// tuneOptions are the flags of tune.
type tuneOptions struct {
	job
	sizes
	ops      []string
	segments []int
	time     time.Duration
	file     string
	add      string
	command  string
}

func parseTune(args []string, usage io.Writer) (*tuneOptions, error) {
	o := &tuneOptions{sizes: sizes{min: 4, max: 16 << 20, factor: 8}, time: 10 * time.Millisecond, command: strings.Join(append([]string{"tuttibench", "tune"}, args...), " ")}
	flags := flag.NewFlagSet("tuttibench tune", flag.ContinueOnError)
	o.job.flags(flags)
	o.sizes.flags(flags)
	ops := flags.String("ops", strings.Join(tunable(), ","), "the `collectives` to tune")
	segments := flags.String("segments", "64Ki,128Ki,256Ki,512Ki", "the `sizes` of segments to try in messages that have several")
	flags.Var((*durationFlag)(&o.time), "time", "how long to measure each algorithm at each size, three times: a `time` such as 10ms")
	flags.StringVar(&o.file, "o", "", "write the tuning `file` here; by default it is printed")
	flags.StringVar(&o.add, "add", "", "keep what this tuning `file` holds for other ranks, wires and collectives")
	if err := parse(flags, args, usage); err != nil {
		return nil, err
	}
	for op := range strings.SplitSeq(*ops, ",") {
		if !slices.Contains(tunable(), op) {
			return nil, fmt.Errorf("-ops %q: want some of %s", op, strings.Join(tunable(), ","))
		}
		o.ops = append(o.ops, op)
	}
	for text := range strings.SplitSeq(*segments, ",") {
		n, err := collective.ParseSize(text)
		if err == nil && (n == 0 || n > collective.MaxSegment) {
			err = fmt.Errorf("want sizes from %d to %d", collective.MinSegment, collective.MaxSegment)
		}
		if err == nil {
			err = collective.CheckSegment(int(n))
		}
		if err != nil {
			return nil, fmt.Errorf("-segments %q: %w", text, err)
		}
		o.segments = append(o.segments, int(n))
	}
	slices.Sort(o.segments)
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if o.time < 0 {
		return nil, fmt.Errorf("-time %v: want 0 or more", o.time)
	}
	return o, o.sizes.check()
}

// tunable returns the collectives that tune can time.
func tunable() []string {
	return slices.DeleteFunc(slices.Clone(opNames), func(op string) bool { return op == "pingpong" })
}

// tune measures this job's transports, compares all algorithms, and writes a tuning file.
func tune(ctx context.Context, c *comm.Comm, o *tuneOptions, out, log io.Writer) error {
	if c.Size() < 2 {
		return errors.New("got one rank, want 2 or more; tuttirun -np 2 starts two")
	}
	var old oldTuning
	if o.add != "" {
		if err := onRankZero(ctx, c, "add", o.add, old.read); err != nil {
			return err
		}
	}
	if o.file != "" {
		if err := onRankZero(ctx, c, "o", o.file, checkReplaceable); err != nil {
			return err
		}
	}
	t := &tuner{c: c, o: o, log: io.Discard}
	if c.Rank() == 0 {
		t.log = log
	}
	model, err := t.model(ctx)
	if err != nil {
		return err
	}
	for _, op := range o.ops {
		if err := t.op(ctx, op); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	if c.Rank() != 0 {
		return nil
	}
	times := choose.Merge(old.Measurements, t.times)
	result := &choose.TuningFile{
		Machine: machine(), Commit: version.Commit(), Measured: time.Now().UTC().Format(time.RFC3339),
		Command: fmt.Sprintf("%s, on %d ranks", o.command, c.Size()),
		Model:   choose.MergeModels(old.Model, model), Rules: choose.Rules(times), Measurements: times,
	}
	if o.file == "" {
		_, err := out.Write(result.Encode())
		return err
	}
	if err := atomicwriter.WriteFile(o.file, result.Encode(), 0o644); err != nil {
		_, _ = out.Write(result.Encode()) // prints the result, so that the measurement is not lost
		return err
	}
	return nil
}

// checkReplaceable returns an error if the file cannot be replaced, so that the command fails
// before it measures anything. It creates a temporary file in the same folder and removes it
// again.
func checkReplaceable(file string) error {
	w, err := atomicwriter.New(file, 0o644)
	if err != nil {
		return err
	}
	return w.Close() // nothing was written, so Close replaces nothing
}

// An oldTuning is the tuning that -add names.
type oldTuning struct{ choose.TuningFile }

func (e *oldTuning) read(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	t, err := choose.Decode(file, text)
	if err == nil {
		e.TuningFile = *t
	}
	return err
}
