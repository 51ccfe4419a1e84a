package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"

	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/collective/choose"
	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/tensor"
)

// A tuner makes one rank take part in a tuning run. All ranks reach the same decisions, because the
// timings that decide are the same on every rank.
type tuner struct {
	c     *comm.Comm
	o     *tuneOptions
	log   io.Writer
	times []choose.Measurement
}

// A way is an algorithm with a segment size, and a communicator that forces both.
type way struct {
	algorithm collective.Algorithm
	segment   int // 0 means the default segment size
	c         *comm.Comm
}

// op times all ways to run one collective.
func (t *tuner) op(ctx context.Context, op string) error {
	verb, err := collective.ParseVerb(op)
	if err != nil {
		return err
	}
	ways, err := t.ways(ctx, verb)
	defer func() {
		for _, w := range ways {
			w.c.Close(ctx)
		}
	}()
	if err != nil {
		return err
	}
	k := options{op: op, dtype: tensor.Float32, min: t.o.min, max: t.o.max, factor: t.o.factor}
	counts := k.counts(t.c.Size())
	elements := sharedElements(t.c.Size())
	vs, err := vectorsFor(t.c, k, max(counts[len(counts)-1], elements))
	if err != nil {
		return err
	}
	if ways, err = warm(ctx, vs, elements, ways); err != nil {
		return err
	}
	for _, count := range counts {
		if err := t.size(ctx, k, vs, count, ways); err != nil {
			return err
		}
	}
	return nil
}

// ways returns the ways to run the collective verb that this job may be able to use. Some of them
// may need shared memory that the job lacks. If ways fails, it also returns the ways that it has
// made, so that the caller can close them.
func (t *tuner) ways(ctx context.Context, verb collective.Verb) (ways []*way, err error) {
	levels := t.c.Layout().Hosts() > 1 && t.c.Layout().Hosts() < t.c.Size()
	for _, a := range collective.Algorithms(verb) {
		if a.Hierarchical() && !levels {
			continue // no rule would choose this algorithm
		}
		for _, segment := range append([]int{0}, t.o.segments...) {
			if segment != 0 && (a.NeedsShared() || verb == collective.VerbBarrier) {
				continue
			}
			w := &way{algorithm: a, segment: segment}
			list := a.String()
			if segment != 0 {
				list = fmt.Sprintf("%v@%d", a, segment)
			}
			if w.c, err = t.c.Dup(ctx, comm.Algorithm(list)); err != nil {
				return ways, err
			}
			ways = append(ways, w)
		}
	}
	return ways, nil
}

// sharedElements returns the number of elements that fill all memory that n ranks share, rounded to
// a multiple of n. A test compares it with p2p.SharedSize.
func sharedElements(n int) int { return max(5<<20, n*256<<10) / tensor.Float32.Size() / n * n }

// warm runs each way through shared memory once, and returns the ways that this job can run. The
// argument elements is the length of a vector that fills all of the shared memory. The kernel
// allocates a slot's pages when they are first touched, and a call of 16 to 128 KiB touches another
// slot each time. So without warm, hundreds of calls would take several times as long as later
// calls. Messages need no such step, because all ways share the same rings.
func warm(ctx context.Context, vs vectors, elements int, ways []*way) (able []*way, err error) {
	for _, w := range ways {
		if w.algorithm.NeedsShared() {
			x := vs.on(w.c).trial(elements)
			x.load()
			err := x.run(ctx)
			if errors.Is(err, fault.Misuse) {
				continue // the ranks share no memory; the call failed before anything was sent
			}
			if err != nil {
				return nil, fmt.Errorf("%v of %d bytes: %w", w.algorithm, x.bytes, err)
			}
		}
		able = append(able, w)
	}
	return able, nil
}

// size times all ways with vectors of count elements, in several passes. Then it times each way
// that would replace the default table's way in turns with that way.
func (t *tuner) size(ctx context.Context, k options, vs vectors, count int, ways []*way) error {
	bytes := count * k.dtype.Size()
	if k.op == "barrier" {
		bytes = 0
	}
	h := newHeats(t.c.Size(), bytes, t.c.Bridge().Wire(), ways)
	h.time = func(w *way) (float64, error) { return t.time(ctx, vs.on(w.c).trial(count)) }
	runtime.GC() // makes a collection during a heat less likely
	if err := h.run(); err != nil {
		return err
	}
	for _, x := range h.times() {
		t.times = append(t.times, x)
		fmt.Fprintf(t.log, "%-14s %9d bytes  %-20s %7d %11.2f us\n", k.op, bytes, x.Algorithm.Name(), x.Segment, 1e6*x.Seconds)
	}
	return nil
}

// time returns the median time of a trial, as a sweep measures it.
func (t *tuner) time(ctx context.Context, x trial) (float64, error) {
	x.load()
	s, err := timed(ctx, t.c, x, budget{t.o.time, maxIterations})
	if err != nil {
		return 0, err
	}
	if s.wrong > 0 {
		return 0, fmt.Errorf("%d elements are wrong", s.wrong)
	}
	return s.median(), nil
}

// heats times the ways to run one collective with vectors of one size, and holds the results. A way
// is an algorithm with a segment size. A heat is one timing of a way: the way runs many times, and
// the median of the times is the result. Package choose derives the rules that name the fastest way
// from the results.
type heats struct {
	ranks, bytes int
	wire         string
	ways         []*way
	time         func(*way) (float64, error) // makes one heat, and returns its median
	got          map[*way]float64            // the smallest median so far
	ratios       map[*way][]outcome          // for each rival, one outcome per way that it was compared with
}

// An outcome is the result of a comparison in turns: the time of a rival, divided by the time of
// the usual way. The usual way is the way that the default table chooses.
type outcome struct {
	usual *way
	ratio float64
}

func newHeats(ranks, bytes int, wire string, ways []*way) *heats {
	return &heats{ranks: ranks, bytes: bytes, wire: wire, ways: ways, got: make(map[*way]float64), ratios: make(map[*way][]outcome)}
}

// run times the ways in passes. Then it compares each way of the default table in turns with the
// ways that would replace it.
func (h *heats) run() error {
	for pass := range passes {
		for _, w := range h.ways {
			if !h.worth(w, pass) {
				continue
			}
			if _, err := h.heat(w); err != nil {
				return err
			}
		}
	}
	var done []choose.Comparison
	for {
		r, ok := h.nextRivalry(done)
		if !ok {
			return nil
		}
		done = append(done, r)
		if err := h.turns(h.wayOf(r.Default), h.wayOf(r.Contender)); err != nil {
			return err
		}
	}
}

// heat times a way once, and returns the median. It stores the median if it is the way's smallest
// one so far.
func (h *heats) heat(w *way) (float64, error) {
	seconds, err := h.time(w)
	if err != nil {
		return 0, fmt.Errorf("%v of %d bytes: %w", w.algorithm, h.bytes, err)
	}
	if old, ok := h.got[w]; !ok || seconds < old {
		h.got[w] = seconds
	}
	return seconds, nil
}

// passes is the maximum number of times that each way is timed. The smallest median counts. Each
// pass times all ways, so that a short disturbance of the machine affects all of them.
const passes = 3

// secondPass and thirdPass limit which ways are timed again, as multiples of the best time so far.
// A way with the default segment size is omitted from the second pass if its time is above
// secondPass times the best, because no disturbance explains such a time. It is omitted from the
// third pass if its time is above thirdPass times the best. thirdPass is also the limit for timing
// an algorithm with other segment sizes.
const (
	secondPass = 8
	thirdPass  = 1.5
)

// worth reports whether a way should be timed in this pass. The first pass times only the default
// segment size. Later passes omit a segment size if an average message consists of at most one such
// segment.
func (h *heats) worth(w *way, pass int) bool {
	best := h.best()
	switch {
	case pass == 0:
		return w.segment == 0
	case w.segment == 0 && pass == 1:
		return h.got[w] <= secondPass*best
	case w.segment == 0:
		return h.got[w] <= thirdPass*best
	}
	alpha, beta, _ := w.algorithm.Cost(h.ranks, h.bytes, w.segment)
	if alpha == 0 || beta/alpha < float64(w.segment) {
		return false
	}
	usual := slices.IndexFunc(h.ways, func(x *way) bool { return x.algorithm == w.algorithm && x.segment == 0 })
	return usual >= 0 && h.got[h.ways[usual]] <= thirdPass*best
}

// best returns the smallest time of all ways, or 0 before the first heat.
func (h *heats) best() float64 {
	best := 0.0
	for _, seconds := range h.got {
		if best == 0 || seconds < best {
			best = seconds
		}
	}
	return best
}

// nextRivalry returns the next comparison to measure in turns: a way of the default table, and a
// way that would replace it in the rules. The argument done holds the comparisons that have been
// measured. If none is left, nextRivalry returns false.
func (h *heats) nextRivalry(done []choose.Comparison) (choose.Comparison, bool) {
	for _, r := range choose.Comparisons(h.times()) {
		if !slices.ContainsFunc(done, func(d choose.Comparison) bool {
			return h.wayOf(d.Default) == h.wayOf(r.Default) && h.wayOf(d.Contender) == h.wayOf(r.Contender)
		}) {
			return r, true
		}
	}
	return choose.Comparison{}, false
}

// bouts is the number of turns in a comparison. It is odd, so that the median is one of the
// measured values.
const bouts = 5

// turns compares two ways of a collective by timing them alternately. The time of a single heat
// depends on chance and on changes of the machine's speed. Therefore only the median of the ratios
// of all turns counts, and not the times of separate heats.
func (h *heats) turns(usual, rival *way) error {
	var ratios []float64
	for range bouts {
		a, err := h.heat(usual)
		if err != nil {
			return err
		}
		b, err := h.heat(rival)
		if err != nil {
			return err
		}
		ratios = append(ratios, b/a)
	}
	slices.Sort(ratios)
	h.ratios[rival] = append(h.ratios[rival], outcome{usual, ratios[bouts/2]})
	return nil
}

// seconds returns the time of a way for the results. For a way that was timed in turns with the
// usual way, the time is the measured ratio multiplied by the usual way's time.
//
// A rival may have several usual ways: one for calls through shared memory and one for others.
// If the rival was faster than each of them, its time is the worst of its ratios multiplied by
// the fastest usual way's time. If it was slower than any of them, only the ratios above 1
// count, because a win against one usual way must not cancel a loss against another.
func (h *heats) seconds(w *way) (float64, bool) {
	if len(h.ratios[w]) == 0 {
		seconds, ok := h.got[w]
		return seconds, ok
	}
	quickest, ratio, lost := math.Inf(1), 0.0, 0.0
	for _, o := range h.ratios[w] {
		usual := h.got[o.usual]
		quickest, ratio = min(quickest, usual), max(ratio, o.ratio)
		if o.ratio > choose.MaxRatio {
			lost = max(lost, usual*o.ratio)
		}
	}
	if lost > 0 {
		return lost, true
	}
	return quickest * ratio, true
}

func (h *heats) wayOf(x choose.Measurement) *way {
	i := slices.IndexFunc(h.ways, func(w *way) bool { return w.algorithm == x.Algorithm && w.segment == x.Segment })
	return h.ways[i]
}

// times returns the results in the order of the ways.
func (h *heats) times() []choose.Measurement {
	var all []choose.Measurement
	for _, w := range h.ways {
		if seconds, ok := h.seconds(w); ok {
			all = append(all, choose.Measurement{Algorithm: w.algorithm, Wire: h.wire, Ranks: h.ranks, Bytes: h.bytes, Segment: w.segment, Seconds: seconds})
		}
	}
	return all
}
