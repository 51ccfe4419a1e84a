package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/collective/choose"
	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/tensor"
)

// tuneOptions are what the command line of tune says.
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
	flags.Var((*span)(&o.time), "time", "how long to measure each algorithm at each size, three times: a `time` as 10ms")
	flags.StringVar(&o.file, "o", "", "write the tuning `file` here; by default it is printed")
	flags.StringVar(&o.add, "add", "", "add to what this tuning `file` holds of other ranks, wires and collectives")
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

// tunable are the collectives that tune can time.
func tunable() []string {
	return slices.DeleteFunc(slices.Clone(opNames), func(op string) bool { return op == "pingpong" })
}

// tune measures this job's wires, and all algorithms beside each other, and writes
// a tuning file.
func tune(ctx context.Context, c *comm.Comm, o *tuneOptions, out, log io.Writer) error {
	if c.Size() < 2 {
		return errors.New("one rank has nothing to tune; tuttirun -np 2 starts two")
	}
	var older earlier
	if o.add != "" {
		if err := onRankZero(ctx, c, "add", o.add, older.read); err != nil {
			return err
		}
	}
	if o.file != "" {
		if err := onRankZero(ctx, c, "o", o.file, replaceable); err != nil {
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
	times := choose.Merge(older.Times, t.times)
	result := &choose.Tuning{
		Machine: machine(), Commit: commit(), Taken: time.Now().UTC().Format(time.RFC3339),
		Command: fmt.Sprintf("%s, on %d ranks", o.command, c.Size()),
		Model:   choose.MergeModels(older.Model, model), Rules: choose.Rules(times), Times: times,
	}
	if o.file == "" {
		_, err := out.Write(result.Encode())
		return err
	}
	return replace(o.file, result.Encode())
}

// An earlier tuning is what -add names.
type earlier struct{ choose.Tuning }

func (e *earlier) read(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	t, err := choose.Decode(file, text)
	if err == nil {
		e.Tuning = *t
	}
	return err
}

// A tuner is one rank's part in a tuning. All ranks take the same decisions,
// because they take them by times that all of them have.
type tuner struct {
	c     *comm.Comm
	o     *tuneOptions
	log   io.Writer
	times []choose.Time
}

// A way is an algorithm with a segment, and a communicator that is forced to it.
type way struct {
	algorithm collective.Algorithm
	segment   int // 0: the usual one
	c         *comm.Comm
}

// op times all ways to carry out one collective.
func (t *tuner) op(ctx context.Context, op string) error {
	verb, err := collective.ParseVerb(op)
	if err != nil {
		return err
	}
	var ways []*way
	defer func() {
		for _, w := range ways {
			w.c.Close(ctx)
		}
	}()
	levels := t.c.Hosts() > 1 && t.c.Hosts() < t.c.Size()
	for _, a := range collective.Algorithms(verb) {
		if a.Hierarchical() && !levels {
			continue // no rule would choose it
		}
		for _, segment := range append([]int{0}, t.o.segments...) {
			if segment != 0 && (a.NeedsShared() || op == "barrier") {
				continue
			}
			w := &way{algorithm: a, segment: segment}
			list := a.String()
			if segment != 0 {
				list = fmt.Sprintf("%v@%d", a, segment)
			}
			if w.c, err = t.c.DupForcing(ctx, list); err != nil {
				return err
			}
			ways = append(ways, w)
		}
	}
	k := options{op: op, dtype: tensor.Float32, min: t.o.min, max: t.o.max, factor: t.o.factor}
	counts := k.counts(t.c.Size())
	vs, err := vectorsFor(t.c, k, counts[len(counts)-1])
	if err != nil {
		return err
	}
	runtime.GC() // not in the midst of a measurement, if that can be helped
	for _, count := range counts {
		if err := t.size(ctx, k, vs, count, ways); err != nil {
			return err
		}
	}
	return nil
}

// size times all ways with vectors of count elements. Ways that are far behind
// are not timed to the end, and segments only of those that are not.
func (t *tuner) size(ctx context.Context, k options, vs vectors, count int, ways []*way) error {
	bytes := count * k.dtype.Size()
	if k.op == "barrier" {
		bytes = 0
	}
	best := 0.0
	got := make(map[*way]float64)
	for pass := range passes {
		for _, w := range ways {
			if pass == 0 && w.segment != 0 || pass > 0 && !t.worthMore(w, bytes, got, ways, best) {
				continue
			}
			seconds, err := t.time(ctx, vs.on(w.c).trial(count), best)
			if errors.Is(err, fault.Misuse) && w.algorithm.NeedsShared() {
				continue // these ranks share no memory: refused before anything was sent
			}
			if err != nil {
				return fmt.Errorf("%v of %d bytes: %w", w.algorithm, bytes, err)
			}
			if best == 0 || seconds < best {
				best = seconds
			}
			if old, ok := got[w]; !ok || seconds < old {
				got[w] = seconds
			}
		}
	}
	for _, w := range ways {
		seconds, ok := got[w]
		if !ok {
			continue
		}
		x := choose.Time{Algorithm: w.algorithm, Wire: t.c.Wire(), Ranks: t.c.Size(), Bytes: bytes, Segment: w.segment, Seconds: seconds}
		t.times = append(t.times, x)
		fmt.Fprintf(t.log, "%-14s %9d bytes  %-20s %7d %11.2f us\n", k.op, bytes, w.algorithm.Name(), w.segment, 1e6*seconds)
	}
	return nil
}

// passes is how often each way is timed; the least median counts. Passes over all
// ways keep a moment in which the machine was slow from deciding. The first one
// leaves segments out.
const passes = 3

// worthMore reports whether a way is to be timed again: its algorithm is within
// reach of the best, and its segments make more than one of its mean message.
func (t *tuner) worthMore(w *way, bytes int, got map[*way]float64, ways []*way, best float64) bool {
	usual, ok := got[w]
	if w.segment != 0 {
		alpha, beta, _ := w.algorithm.Cost(t.c.Size(), bytes, w.segment)
		if alpha == 0 || beta/alpha < float64(w.segment) {
			return false
		}
		for _, other := range ways {
			if other.algorithm == w.algorithm && other.segment == 0 {
				usual, ok = got[other]
			}
		}
	}
	return ok && usual <= 1.5*best
}

// hopeless is how many times as long as the best a way may take to be timed on.
const hopeless = 3

// time is the median time of one trial; the least, where it is hopeless.
func (t *tuner) time(ctx context.Context, x trial, best float64) (float64, error) {
	st := stopwatch{c: t.c, t: x, seconds: make([]float64, 0, maxIterations), slowest: make([]float64, 1)}
	st.t.load()
	for range warmUps { // the first opens connections
		if _, err := st.iterate(ctx); err != nil {
			return 0, err
		}
	}
	for spent := 0.0; len(st.seconds) < maxIterations; {
		s, err := st.iterate(ctx)
		if err != nil {
			return 0, err
		}
		st.seconds = append(st.seconds, s)
		spent += s
		if len(st.seconds) >= minIterations && best > 0 && slices.Min(st.seconds) > hopeless*best {
			return slices.Min(st.seconds), nil
		}
		if spent > t.o.time.Seconds() && len(st.seconds) >= minIterations {
			break
		}
	}
	wrong, err := verify(ctx, t.c, st.t)
	if err == nil && wrong > 0 {
		err = fmt.Errorf("%d elements are wrong", wrong)
	}
	slices.Sort(st.seconds)
	return st.seconds[len(st.seconds)/2], err
}
