package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
	"github.com/tutti-go/tutti/internal/figure"
)

// A method is one way to reduce a model's gradients. The negotiation, which reduces none, is a
// method, too.
type method struct {
	op    string
	load  func()
	run   func(context.Context) error
	empty bool
}

// sweepNamed compares three ways to reduce a model's gradients: by a coordinator, to which each
// rank submits them in a different order; by separate calls in one order; and as one vector. It
// also times the negotiation alone. The ways take turns, so that a disturbance of the machine
// affects all of them alike.
func sweepNamed(ctx context.Context, c *comm.Comm, o options, out, notes io.Writer) error {
	g := newGradients(c, paramsOf(o.model))
	co, err := coordinator.Start(ctx, c)
	if err != nil {
		return err
	}
	negotiator, err := startNegotiator(ctx, c)
	if err != nil {
		return err
	}
	g.declare(co, negotiator)
	methods := []method{
		{op: "coordinator", load: g.load, run: g.named},
		{op: "separate", load: g.load, run: g.separate},
		{op: "whole", load: g.load, run: g.whole},
		{op: "negotiation", load: g.submitAllButLast, run: g.negotiate, empty: true},
	}
	samples, err := g.measure(ctx, methods, budget{o.time, o.maxIterations})
	if err != nil {
		return err
	}
	if err := errors.Join(co.Close(ctx), negotiator.Close(ctx)); err != nil {
		return err
	}
	if c.Rank() > 0 {
		out, notes = io.Discard, io.Discard
	}
	return printNamed(c, o, methods, samples, g, newReporter(o.format, out, notes))
}

// startNegotiator starts a coordinator that only negotiates. Its cycle is so long that it sends
// nothing before the last submission of a step. The environment variables for timelines and
// autotuning are meant for the other coordinator, so startNegotiator first unsets them.
func startNegotiator(ctx context.Context, c *comm.Comm) (*coordinator.Coordinator, error) {
	// Ranks of one process share the environment, so all of them must have started the other
	// coordinator before it is changed.
	if err := c.Barrier(ctx); err != nil {
		return nil, err
	}
	for _, name := range []string{"TIMELINE", "AUTOTUNE", "AUTOTUNE_FILE"} {
		os.Unsetenv("TUTTI_" + name)
		os.Unsetenv("HOROVOD_" + name)
	}
	return coordinator.Start(ctx, c, coordinator.WithCycle(time.Hour))
}

func printNamed(c *comm.Comm, o options, methods []method, samples []sample, g *gradients, paper reporter) error {
	o.inplace = true
	if err := paper.begin(o.model + ": " + remark(c, o)); err != nil {
		return err
	}
	beside := pairedRatios(samples)
	var rows []row
	for i, way := range methods {
		slices.Sort(samples[i].seconds)
		count := len(g.all)
		if way.empty {
			count = 0
		}
		r := o.rowOf(c, count, samples[i])
		r.Op, r.BusBW = way.op, r.AlgBW*figure.BusFactor("allreduce", c.Size())
		if way.op == "whole" {
			r.Algorithm = c.Bridge().Algorithm("allreduce", r.Bytes, comm.Sum)
		}
		if err := paper.row(r); err != nil {
			return err
		}
		rows = append(rows, r)
	}
	if err := paper.remark(beside); err != nil {
		return err
	}
	if err := paper.end(); err != nil {
		return err
	}
	return verdict(rows)
}

// pairedRatios returns a text that compares the coordinator with the separate calls and with the
// one vector. For each comparison it computes the ratio of the times in every turn, and reports the
// median of the ratios. A temporary slowdown of the machine affects all times of a turn, so it
// hardly changes their ratio, although it may change the medians in the rows.
func pairedRatios(samples []sample) string {
	return fmt.Sprintf("turn by turn the coordinator takes %.2f of separate and %.2f of whole (medians of %d)",
		medianRatio(samples[0].seconds, samples[1].seconds), medianRatio(samples[0].seconds, samples[2].seconds), len(samples[0].seconds))
}

// medianRatio returns the median of a[i]/b[i].
func medianRatio(a, b []float64) float64 {
	ratios := make([]float64, len(a))
	for i := range a {
		ratios[i] = a[i] / b[i]
	}
	slices.Sort(ratios)
	return ratios[len(ratios)/2]
}

// gradients holds a model's gradients, one after the other in one vector.
type gradients struct {
	c          *comm.Comm
	params     []param
	all        []float32
	each       [][]float32
	order      []int // the order of submission on this rank; shuffled in every step
	shuffle    *rand.Rand
	tensors    []*coordinator.Handle
	empty      []*coordinator.Handle // tensors with the same names, without elements
	mine, want pattern[float32]
}

func newGradients(c *comm.Comm, ps []param) *gradients {
	g := &gradients{
		c: c, params: ps, all: make([]float32, params(ps).elements()),
		shuffle: rand.New(rand.NewPCG(uint64(c.Rank()), 1)),
		mine:    addend(integer[float32], c.Rank()), want: sum(integer[float32], c.Size()),
	}
	at := 0
	for i, p := range ps {
		g.each = append(g.each, g.all[at:at+p.count:at+p.count])
		g.order = append(g.order, i)
		at += p.count
	}
	return g
}

// load writes new gradients into the vector, and shuffles the order of submission.
func (g *gradients) load() {
	g.mine.fill(g.all, 0)
	g.shuffle.Shuffle(len(g.order), func(i, j int) { g.order[i], g.order[j] = g.order[j], g.order[i] })
}

// declare declares the gradients to co. It declares tensors with the same names, without elements,
// to negotiator.
func (g *gradients) declare(co, negotiator *coordinator.Coordinator) {
	for i, p := range g.params {
		g.tensors = append(g.tensors, coordinator.Declare(co, p.name, g.each[i], comm.Sum))
		g.empty = append(g.empty, coordinator.Declare(negotiator, p.name, g.each[i][:0], comm.Sum))
	}
}

func (g *gradients) named(ctx context.Context) error {
	for _, i := range g.order {
		g.tensors[i].Submit()
	}
	return coordinator.WaitAll(ctx, g.tensors...)
}

// submitAllButLast submits the empty tensors of all names except the last one in this rank's order.
func (g *gradients) submitAllButLast() {
	last := len(g.order) - 1
	for _, i := range g.order[:last] {
		g.empty[i].Submit()
	}
}

// negotiate submits the last name, and waits for all of them. The tensors are empty, so no data is
// packed or sent, and negotiate takes as long as one step's negotiation.
func (g *gradients) negotiate(ctx context.Context) error {
	g.empty[g.order[len(g.order)-1]].Submit()
	return coordinator.WaitAll(ctx, g.empty...)
}

func (g *gradients) separate(ctx context.Context) error {
	for _, v := range g.each {
		if err := comm.AllReduce(ctx, g.c, v, comm.Sum); err != nil {
			return err
		}
	}
	return nil
}

func (g *gradients) whole(ctx context.Context) error {
	return comm.AllReduce(ctx, g.c, g.all, comm.Sum)
}

// measure times all ways alternately, and returns their samples.
func (g *gradients) measure(ctx context.Context, methods []method, b budget) ([]sample, error) {
	trials := make([]trial, len(methods))
	for i, way := range methods {
		trials[i] = trial{load: way.load, run: way.run, spoils: true, wrong: func() int { return g.want.wrong(g.all, 0) }}
		if way.empty {
			trials[i].wrong = func() int { return 0 }
		}
	}
	return alternate(ctx, g.c, trials, b)
}

// alternate times trials in turns until the slowest one has spent the budget, and verifies the
// result of each run. All trials have the same number of turns. The samples are in the order of
// turns.
func alternate(ctx context.Context, c *comm.Comm, trials []trial, b budget) ([]sample, error) {
	watches := make([]stopwatch, len(trials))
	samples := make([]sample, len(trials))
	for i, t := range trials {
		t.spoils = true
		watches[i] = stopwatch{c: c, t: t, slowest: make([]float64, 1)}
	}
	runtime.GC()
	spent, wrong := make([]float64, len(trials)), make([]int, len(trials))
	for turn := 0; turn < warmUps+minIterations || slices.Max(spent) < b.time.Seconds() && turn < warmUps+b.maxIterations; turn++ {
		for i, t := range trials {
			before := mallocs(c)
			s, err := watches[i].iterate(ctx)
			if err != nil {
				return nil, err
			}
			after := mallocs(c)
			wrong[i] += t.wrong()
			if turn < warmUps {
				continue
			}
			samples[i].allocs += float64(after - before)
			samples[i].seconds = append(samples[i].seconds, s)
			spent[i] += s
		}
	}
	if err := comm.AllReduce(ctx, c, wrong, comm.Sum); err != nil {
		return nil, err
	}
	for i := range samples {
		samples[i].wrong = wrong[i]
		samples[i].allocs /= float64(len(samples[i].seconds))
	}
	return samples, nil
}
