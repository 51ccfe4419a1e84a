package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/tutti-go/tutti/comm"
)

// How often a trial runs; see the command's documentation.
const (
	warmUps        = 3
	minIterations  = 5
	maxIterations  = 20000       // the default
	iterationLimit = 100_000_000 // the maximum that a user may ask for, because all times are kept
)

// sweep measures every size, and prints each result on rank 0 at once. If results are wrong, it
// returns the same error on all ranks.
func sweep(ctx context.Context, c *comm.Comm, o options, out, notes io.Writer) error {
	if o.op == "pingpong" && c.Size() < 2 {
		return errors.New("pingpong: got one rank, want 2 or more; tuttirun -np 2 starts two")
	}
	if o.plot != "" {
		if err := onRankZero(ctx, c, "plot", o.plot, checkWritable); err != nil {
			return err
		}
	}
	counts := o.counts(c.Size())
	vs, err := vectorsFor(c, o, counts[len(counts)-1])
	if err != nil {
		return err
	}
	if o.alloc {
		free, err := vs.alloc()
		if err != nil {
			return err
		}
		defer free()
	}
	if c.Rank() > 0 {
		out, notes = io.Discard, io.Discard
	}
	paper := newReporter(o.format, out, notes)
	if err := paper.begin(remark(c, o)); err != nil {
		return err
	}
	var rows []row
	for _, count := range counts {
		s, err := measure(ctx, c, vs.trial(count), budget{o.time, o.maxIterations})
		if err != nil {
			return err
		}
		r := o.rowOf(c, count, s)
		if err := paper.row(r); err != nil {
			return err
		}
		rows = append(rows, r)
	}
	if err := paper.end(); err != nil {
		return err
	}
	if o.plot != "" && c.Rank() == 0 {
		if err := picture(o.plot, rows); err != nil {
			return err
		}
	}
	return verdict(rows)
}

// verdict returns an error that lists the rows with wrong elements, or nil if all results are
// right.
func verdict(rows []row) error {
	var wrong []string
	for _, r := range rows {
		if r.Wrong > 0 {
			wrong = append(wrong, fmt.Sprintf("%d elements at %d bytes", r.Wrong, r.Bytes))
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("wrong results: %s", strings.Join(wrong, ", "))
	}
	return nil
}

// remark returns the text that precedes the rows: the operation, the element type, the buffers, the
// number of ranks and the system.
func remark(c *comm.Comm, o options) string {
	buffers := "out of place"
	if o.inplace || o.op == "broadcast" {
		buffers = "in place"
	}
	if o.alloc {
		buffers += " in memory from Alloc"
	}
	return fmt.Sprintf("%s of %v, %s, on %d ranks; %s, %s/%s, %d processors here",
		o.op, o.dtype, buffers, c.Size(), runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
}

// A sample is the result of one trial's runs.
type sample struct {
	seconds []float64 // the slowest rank's time of each iteration; ascending
	allocs  float64   // heap allocations of rank 0's process per iteration; 0 on other ranks
	wrong   int       // the number of wrong elements on all ranks
}

// A budget bounds a trial. The trial ends when the times of its iterations add up to time, or when
// the number of its iterations is maxIterations.
type budget struct {
	time          time.Duration
	maxIterations int
}

// measure times a trial until its budget is spent. All ranks know the slowest rank's times, so they
// stop at the same iteration without further messages.
func measure(ctx context.Context, c *comm.Comm, t trial, b budget) (sample, error) {
	t.load()
	runtime.GC() // makes a collection during the measurement less likely
	return timed(ctx, c, t, b)
}

// timed measures a trial whose load has run. The caller has run the garbage collector.
func timed(ctx context.Context, c *comm.Comm, t trial, b budget) (sample, error) {
	st := stopwatch{c: c, t: t, slowest: make([]float64, 1)}
	iterate := func() (float64, error) { return st.iterate(ctx) }
	seconds := make([]float64, 0, min(b.maxIterations, maxIterations))
	for range warmUps {
		if _, err := iterate(); err != nil {
			return sample{}, err
		}
	}
	before := mallocs(c)
	seconds, err := repeat(iterate, b, seconds)
	if err != nil {
		return sample{}, err
	}
	allocs := float64(mallocs(c)-before) / float64(len(seconds))
	wrong, err := verify(ctx, c, t)
	slices.Sort(seconds)
	return sample{seconds, allocs, wrong}, err
}

// repeat calls iterate until the budget is spent, but at least minIterations times, and appends the
// time of each iteration to seconds.
func repeat(iterate func() (float64, error), b budget, seconds []float64) ([]float64, error) {
	for spent := 0.0; len(seconds) < b.maxIterations; {
		s, err := iterate()
		if err != nil {
			return nil, err
		}
		seconds = append(seconds, s)
		spent += s
		if spent > b.time.Seconds() && len(seconds) >= minIterations {
			break
		}
	}
	return seconds, nil
}

// median returns the median time, which is the result of a trial.
func (s sample) median() float64 { return s.seconds[len(s.seconds)/2] }

// A stopwatch measures the runs of a trial.
type stopwatch struct {
	c       *comm.Comm
	t       trial
	slowest []float64
}

// iterate runs the trial once on all ranks, starting at a barrier. It returns the seconds of
// the slowest rank.
func (st *stopwatch) iterate(ctx context.Context) (float64, error) {
	if st.t.spoils {
		st.t.load()
	}
	if err := st.c.Barrier(ctx); err != nil {
		return 0, err
	}
	begin := time.Now()
	err := st.t.run(ctx)
	st.slowest[0] = time.Since(begin).Seconds()
	if err != nil {
		return 0, err
	}
	err = comm.AllReduce(ctx, st.c, st.slowest, comm.Max)
	return st.slowest[0], err
}

// mallocs returns the number of heap objects that rank 0's process has ever allocated. On other
// ranks it returns 0, because counting stops the process for some microseconds.
func mallocs(c *comm.Comm) uint64 {
	if c.Rank() > 0 {
		return 0
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

// verify checks the result of the last run. It then clears the buffers, runs the trial once more,
// and checks again. The second check detects a run that writes nothing. verify returns the number
// of wrong elements on all ranks.
func verify(ctx context.Context, c *comm.Comm, t trial) (int, error) {
	wrong := []int{t.wrong()}
	t.load()
	if err := c.Barrier(ctx); err != nil {
		return 0, err
	}
	if err := t.run(ctx); err != nil {
		return 0, err
	}
	wrong[0] += t.wrong()
	err := comm.AllReduce(ctx, c, wrong, comm.Sum)
	return wrong[0], err
}
