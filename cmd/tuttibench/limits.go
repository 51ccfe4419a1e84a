package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/internal/version"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
)

// limitsOptions are the flags of limits.
type limitsOptions struct {
	job
	sizes
	algorithm string
	cold      sizeFlag
	time      time.Duration
}

func parseLimits(args []string, usage io.Writer) (*limitsOptions, error) {
	o := &limitsOptions{sizes: sizes{min: 64 << 20, max: 64 << 20, factor: 4}, cold: 256 << 20, time: 500 * time.Millisecond}
	flags := flag.NewFlagSet("tuttibench limits", flag.ContinueOnError)
	o.job.flags(flags)
	o.sizes.flags(flags)
	flags.StringVar(&o.algorithm, "algorithm", "", "force the allreduce's algorithm of this `name`")
	flags.Var(&o.cold, "cold", "`bytes` that each rank goes through before it uses the same memory again: more than its caches hold")
	flags.Var((*durationFlag)(&o.time), "time", "how long to measure each figure: a `time` such as 150ms or 2s")
	if err := parse(flags, args, usage); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if o.time < 0 || o.cold < 1 {
		return nil, fmt.Errorf("-time %v and -cold %d: want at least 0 and 1", o.time, o.cold)
	}
	if err := tooLarge("cold", o.cold); err != nil {
		return nil, err
	}
	return o, o.sizes.check()
}

// limits prints for each size the time of an allreduce, and the shortest time that any algorithm
// could take on this machine. For that time, every rank copies the vector once, and adds (n-1)/n of
// its elements to the copy. All ranks do so at the same time, from memory that no cache holds. For
// small vectors this time is close to zero. The limit for them is the latency between two cores,
// which limits prints above the table.
func limits(ctx context.Context, c *comm.Comm, o *limitsOptions, out io.Writer) error {
	if c.Size() < 2 {
		return fmt.Errorf("got one rank, want 2 or more; tuttirun -np 2 starts two")
	}
	if c.Rank() > 0 {
		out = io.Discard
	}
	fmt.Fprintf(out, "# allreduce of float32 on %d ranks against copying the vector and adding (n-1)/n of it; %s, %s\n", c.Size(), machine(), version.Commit())
	if c.Rank() == 0 { // the other ranks sleep in the next barrier, so their cores are idle
		if s := coreLatency(); s > 0 {
			fmt.Fprintf(out, "# latency between two cores: %.0f ns\n", 1e9*s)
		} else {
			fmt.Fprintln(out, "# latency between two cores: not measured, because rank 0 has only one core; give it two")
		}
	}
	fmt.Fprintf(out, "%10s %-9s %-18s %11s %11s %11s %12s %6s\n", "bytes", "transport", "algorithm", "copy us", "add us", "bound us", "allreduce us", "ratio")
	for _, bytes := range o.all() {
		l := newMemStream(c, bytes, int(o.cold))
		copied, err := l.time(ctx, o.time, func(dst, src []float32) error { copy(dst, src); return nil })
		if err != nil {
			return err
		}
		added, err := l.timeAdd(ctx, o.time)
		if err != nil {
			return err
		}
		reduced, err := l.timeAllReduce(ctx, o.time)
		if err != nil {
			return err
		}
		bound := copied + added
		fmt.Fprintf(out, "%10d %-9s %-18s %11.2f %11.2f %11.2f %12.2f %6.2f\n", 4*l.count, wires(c), c.Bridge().Algorithm("allreduce", 4*l.count, comm.Sum),
			1e6*copied, 1e6*added, 1e6*bound, 1e6*reduced, reduced/bound)
	}
	return nil
}

// A memStream holds pairs of vectors that one rank uses in turn. All pairs together are larger than
// the caches, so a pair is no longer in a cache when it is used again.
type memStream struct {
	c     *comm.Comm
	count int // elements per vector
	pairs [][2][]float32
	mine  pattern[float32]
	next  int
}

// maxPairs bounds the number of pairs, and so the time of one pass over them. With this bound,
// pairs of small vectors stay in a cache, as the vectors of a typical program do.
const maxPairs = 4096

func newMemStream(c *comm.Comm, bytes, cold int) *memStream {
	l := &memStream{c: c, count: max(1, bytes/4), mine: addend(integer[float32], c.Rank())}
	for range min(max(2, (cold+8*l.count-1)/(8*l.count)), maxPairs) {
		pair := [2][]float32{make([]float32, l.count), make([]float32, l.count)}
		l.mine.fill(pair[1], 0)
		clear(pair[0]) // touches its pages
		l.pairs = append(l.pairs, pair)
	}
	runtime.GC() // frees the vectors of the previous size
	return l
}

// time calls f repeatedly, each time on the next pair, and returns the median of the slowest
// rank's times.
func (l *memStream) time(ctx context.Context, long time.Duration, f func(dst, src []float32) error) (float64, error) {
	run := func(context.Context) error {
		l.next++
		pair := l.pairs[l.next%len(l.pairs)]
		return f(pair[0], pair[1])
	}
	st := stopwatch{c: l.c, t: trial{run: run}, slowest: make([]float64, 1)}
	for range len(l.pairs) { // after one pass, all pages have been touched, and no pair is cached
		if _, err := st.iterate(ctx); err != nil {
			return 0, err
		}
	}
	seconds, err := repeat(func() (float64, error) { return st.iterate(ctx) }, budget{long, maxIterations}, nil)
	if err != nil {
		return 0, err
	}
	slices.Sort(seconds)
	return seconds[len(seconds)/2], nil
}

// timeAdd times the additions that each rank must at least do: (n-1)/n of a vector.
func (l *memStream) timeAdd(ctx context.Context, budget time.Duration) (float64, error) {
	k, err := reduce.Sum.Kernel(tensor.Float32)
	if err != nil {
		return 0, err
	}
	n := l.c.Size()
	part := l.count * (n - 1) / n
	return l.time(ctx, budget, func(dst, src []float32) error {
		d := tensor.Bytes(dst[:part])
		k.Fold(d, d, tensor.Bytes(src[:part]))
		return nil
	})
}

// timeAllReduce times the allreduce itself, and verifies its last result.
func (l *memStream) timeAllReduce(ctx context.Context, budget time.Duration) (float64, error) {
	var last []float32
	seconds, err := l.time(ctx, budget, func(dst, src []float32) error {
		last = dst
		return comm.AllReduce(ctx, l.c, dst, comm.Sum, comm.From(src))
	})
	if err != nil {
		return 0, err
	}
	want := sum(integer[float32], l.c.Size())
	wrong := []int{want.wrong(last, 0)}
	if err := comm.AllReduce(ctx, l.c, wrong, comm.Sum); err != nil {
		return 0, err
	}
	if wrong[0] > 0 {
		return 0, fmt.Errorf("wrong results: %d elements at %d bytes", wrong[0], 4*l.count)
	}
	return seconds, nil
}
