package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/internal/timeline"
	"github.com/tutti-go/tutti/ps"
)

// A trainingStep holds what a worker needs for training steps of a model on parameter servers. The
// worker does not compute: it waits, as it would for an accelerator, so that the communication has
// all cores. Two thirds of the wait stand for the backward pass. Each tensor takes an equal part of
// the time.
type trainingStep struct {
	b          *psBench
	tensors    []*ps.Tensor[float32] // in the order of the forward pass
	handles    []*ps.Handle
	in, out    [][]float32
	mine, want pattern[float32]
	step       int
	compute    time.Duration // the time that one step computes
	timeline   string        // the file of the timeline; "": none
	computed   timeline.Ring[computation]
}

// A computation is the time in which the worker waits in place of a computation for one tensor.
type computation struct {
	pass       string
	tensor     int
	begin, end int64 // nanoseconds since 1970
}

// If a wait for a value takes longer than atOnce, the value had not arrived.
const atOnce = 100 * time.Microsecond

// training measures training steps of -model. Three routes take turns:
//
//	compute        the computation alone
//	communication  the pushes and pulls alone
//	step           both: the push of a tensor begins as soon as its gradient is there, and the
//	               forward pass of the next step waits for the values one by one
//
// The computation takes as long as the communication, because then an overlap saves most.
func (b *psBench) training(ctx context.Context) error {
	t, err := b.newTrainingStep(ctx)
	if err != nil {
		return err
	}
	routes := []route{t.route("compute", t.computeAll), t.route("communication", t.communicate), t.route("step", t.run)}
	routes[0].wrong = func() int { return 0 }
	alone, err := b.alternate(ctx, routes[1:2])
	if err != nil {
		return err
	}
	slices.Sort(alone[0].seconds)
	t.compute = time.Duration(alone[0].median() * float64(time.Second))
	samples, err := b.alternate(ctx, routes)
	if err != nil {
		return err
	}
	if err := t.writeTimeline(); err != nil {
		return err
	}
	slowest := make([]float64, len(samples[0].seconds))
	for i := range slowest {
		slowest[i] = max(samples[0].seconds[i], samples[1].seconds[i])
	}
	return b.report(routes, samples, params(paramsOf(b.o.model)).elements(),
		fmt.Sprintf("turn by turn a step takes %.2f of the longer one of compute and communication (medians of %d)",
			medianRatio(samples[2].seconds, slowest), len(slowest)))
}

func (b *psBench) newTrainingStep(ctx context.Context) (*trainingStep, error) {
	t := &trainingStep{b: b, mine: addend(integer[float32], b.c.Rank()), want: sum(integer[float32], b.workers), timeline: timeline.FromEnvironment()}
	if b.cl == nil {
		return t, nil
	}
	for i, p := range paramsOf(b.o.model) {
		tensor, err := ps.Declare[float32](ctx, b.cl, p.name, p.count, ps.Reduce(comm.Sum), ps.Priority(-i))
		if err != nil {
			return nil, err
		}
		t.tensors = append(t.tensors, tensor)
		t.in, t.out = append(t.in, make([]float32, p.count)), append(t.out, make([]float32, p.count))
	}
	t.handles = make([]*ps.Handle, len(t.tensors))
	return t, nil
}

// route returns a route in which workers call run for each step. A rank that only serves does
// nothing in it.
func (t *trainingStep) route(name string, run func(context.Context) error) route {
	r := route{op: training, algorithm: name, trial: noTrial()}
	if t.b.cl == nil {
		return r
	}
	for _, in := range t.in {
		r.crosses += t.b.crossing(len(in))
	}
	r.load, r.run, r.wrong = t.load, run, t.wrong
	return r
}

func (t *trainingStep) load() {
	t.step++
	for i := range t.in {
		clear(t.out[i])
		t.mine.fill(t.in[i], t.step)
	}
}

func (t *trainingStep) wrong() int {
	wrong := 0
	for _, out := range t.out {
		wrong += t.want.wrong(out, t.step)
	}
	return wrong
}

// push starts the push of tensor i, and the pull of its sum.
func (t *trainingStep) push(i int) { t.handles[i] = t.tensors[i].IPushPull(t.in[i], t.out[i]) }

func (t *trainingStep) communicate(ctx context.Context) error {
	for i := range slices.Backward(t.tensors) {
		t.push(i)
	}
	return ps.WaitAll(ctx, t.handles...)
}

func (t *trainingStep) computeAll(context.Context) error {
	t.passes(func(int) {}, func(int) error { return nil })
	return nil
}

func (t *trainingStep) run(ctx context.Context) error {
	return t.passes(t.push, func(i int) error { return t.handles[i].Wait(ctx) })
}

// passes computes the backward pass, and then the forward pass of the next step. It calls computed
// when the gradient of a tensor has been computed, and needed before it uses the value of a tensor.
func (t *trainingStep) passes(computed func(i int), needed func(i int) error) error {
	each := t.compute / time.Duration(3*len(t.tensors))
	until := time.Now()
	for i := range slices.Backward(t.tensors) {
		until = until.Add(2 * each)
		t.wait("backward", i, until)
		computed(i)
	}
	for i := range t.tensors {
		asked := time.Now()
		if err := needed(i); err != nil {
			return err
		}
		// The accelerator has waited for the value, too, so it continues from now. A sleep that merely
		// ended late does not delay it.
		if now := time.Now(); now.Sub(asked) > atOnce && now.After(until) {
			until = now
		}
		until = until.Add(each)
		t.wait("forward", i, until)
	}
	return nil
}

// wait stands for the computation of an accelerator.
func (t *trainingStep) wait(pass string, i int, until time.Time) {
	begin := time.Now()
	time.Sleep(time.Until(until))
	if t.timeline != "" {
		t.computed.Add(computation{pass, i, begin.UnixNano(), time.Now().UnixNano()})
	}
}

// writeTimeline writes a worker's computations, if the environment asks for a timeline. Package ps
// writes the pushes and pulls. The clocks of different hosts are not compared.
func (t *trainingStep) writeTimeline() error {
	if t.timeline == "" || t.b.cl == nil {
		return nil
	}
	names := paramsOf(t.b.o.model)
	rank := t.b.c.WorldRank(t.b.c.Rank())
	host, _ := os.Hostname() // without it the timeline has no name for the host
	list, dropped := t.computed.All()
	return timeline.WritePart(timeline.PartName(t.timeline, rank), timeline.Info{Rank: rank, Host: host, Dropped: dropped}, 0, func(w *timeline.Writer) {
		for _, c := range list {
			w.Span("computation", c.pass+" "+names[c.tensor].name, c.begin, c.end)
		}
	})
}
