package optim

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/ps"
	"github.com/tutti-go/tutti/ps/optimizer"
	"github.com/tutti-go/tutti/tensor"
)

// A Parameter is a named vector of a model. Value and Gradient have the same length, and do not
// overlap. All workers give equal parameters in the same order. The first ones are the most urgent.
type Parameter[T float32 | float64] struct {
	Name            string
	Value, Gradient []T
	Way             Way
	TopK            float64 // the share of the gradient's elements that each worker sends; 0: all
}

// An Optimizer makes the steps of a training, on each worker. One goroutine at a time may use it, but
// Move may be called by any.
type Optimizer[T float32 | float64] struct {
	co     *coordinator.Coordinator
	cl     *ps.Client
	update func(values, gradient []T, slots [][]T, step int64)
	params []*parameter[T]
	named  map[string]*parameter[T]
	auto   []*parameter[T]
	choose *chooser // on worker 0

	// sides is what worker 0 broadcasts in each step: the Way of each parameter in the next step.
	sides     []uint8
	broadcast *coordinator.Handle
	began     time.Time // of the first submission of a step; zero before it
	waiting   bool      // the step's gradients are all submitted
	done      int       // parameters of the step that are done
	err       error     // ends the Optimizer

	mu     sync.Mutex // guards wanted
	wanted map[int]Way
}

// A parameter is a Parameter with its state.
type parameter[T float32 | float64] struct {
	Parameter[T]
	side      Way
	state     ps.State[T] // slots and steps are valid on the ring
	tensor    *ps.Tensor[T]
	ways      [Servers + 1]*coordinator.Handle // by side
	submitted bool
}

// New makes an Optimizer of these parameters. Every worker of cl calls it. The coordinator is one of
// cl.Workers. The values become those of worker 0; if the servers have values that Client.Restore has
// brought back, they become those. On the servers, each parameter is a tensor of its name.
//
// Worker 0 chooses the sides of the parameters with the side Auto. A model of the bytes on the busiest
// link compares the two ways: it depends on the parameter's size, on TopK, and on the numbers of
// workers and servers. Parameters up to 256 KiB stay on the ring. Unless the coordinator is
// Deterministic, the model is scaled by the times of 14 steps at the start, which are made on both
// sides.
//
// The gradients' mean has the same bits on both sides only if the order of the sum has no effect on
// them, as with two workers.
func New[T float32 | float64](ctx context.Context, co *coordinator.Coordinator, cl *ps.Client, o optimizer.Optimizer, params []Parameter[T]) (*Optimizer[T], error) {
	if err := check(cl, o, params); err != nil {
		return nil, err
	}
	opt := &Optimizer[T]{co: co, cl: cl, update: optimizer.Update[T](o), named: make(map[string]*parameter[T]), wanted: make(map[int]Way)}
	for i := range params {
		p, err := newParameter(ctx, co, cl, o, params[i], -i)
		if err != nil {
			return nil, named(params[i].Name, err)
		}
		opt.params = append(opt.params, p)
		opt.named[p.Name] = p
		if p.Way == Auto {
			opt.auto = append(opt.auto, p)
		}
	}
	opt.sides = make([]uint8, len(params))
	if err := opt.start(ctx); err != nil {
		return nil, err
	}
	return opt, nil
}

// check returns what is wrong with the arguments of New.
func check[T float32 | float64](cl *ps.Client, o optimizer.Optimizer, params []Parameter[T]) error {
	rank := cl.Workers().WorldRank(cl.Workers().Rank())
	bad := func(name, format string, args ...any) error {
		return fault.New(fault.Misuse, "parameter "+name, rank, format, args...)
	}
	if o == nil || len(params) == 0 {
		return fault.New(fault.Misuse, "new optimizer", rank, "got %d parameters and optimizer %v, want both", len(params), o)
	}
	seen := make(map[string]bool)
	for _, p := range params {
		switch {
		case seen[p.Name]:
			return bad(p.Name, "name: got it twice, want it once")
		case len(p.Value) == 0 || len(p.Value) != len(p.Gradient):
			return bad(p.Name, "got %d values and %d elements of the gradient, want as many, and at least 1", len(p.Value), len(p.Gradient))
		case tensor.Overlap(tensor.Bytes(p.Value), tensor.Bytes(p.Gradient)):
			return bad(p.Name, "got a value and a gradient that overlap, want separate slices")
		case p.Way > Servers:
			return bad(p.Name, "side: got %d, want Auto, Ring or Servers", p.Way)
		case !(p.TopK >= 0 && p.TopK <= 1):
			return bad(p.Name, "TopK: got %v, want 0 to 1", p.TopK)
		}
		seen[p.Name] = true
	}
	return nil
}

func newParameter[T float32 | float64](ctx context.Context, co *coordinator.Coordinator, cl *ps.Client, o optimizer.Optimizer, spec Parameter[T], priority int) (*parameter[T], error) {
	p := &parameter[T]{Parameter: spec, side: spec.Way}
	declared := []ps.TensorOption{ps.Optimizer(o), ps.Priority(priority)}
	called := []coordinator.CallOption{coordinator.Priority(priority)}
	if p.TopK > 0 {
		// Both ways leave elements out in the same memory, so a change of side need not move them.
		residual := make([]T, len(p.Value))
		declared = append(declared, ps.TopK(p.TopK), ps.Residual(residual))
		called = append(called, coordinator.TopK(max(1, int(p.TopK*float64(len(p.Value)))), residual))
	}
	var err error
	if p.tensor, err = ps.Declare[T](ctx, cl, p.Name, len(p.Value), declared...); err != nil {
		return nil, err
	}
	p.state.Values = p.Value
	for _, first := range o.State().Slots {
		slot := make([]T, len(p.Value))
		for i := range slot {
			slot[i] = T(first)
		}
		p.state.Slots = append(p.state.Slots, slot)
	}
	p.ways[Ring] = coordinator.Declare(co, p.Name, p.Gradient, comm.Mean, called...)
	p.ways[Servers] = coordinator.DeclarePushPull[T](co, p.Name, len(p.Value), func() coordinator.Future {
		return p.tensor.IPushPull(p.Gradient, p.Value)
	}, coordinator.Priority(priority))
	return p, nil
}

// start gives all workers the first values, and the first sides.
func (o *Optimizer[T]) start(ctx context.Context) error {
	first := o.worker() == 0
	restored := make([]uint8, len(o.params))
	if first {
		o.choose = &chooser{workers: o.cl.Workers().Size(), servers: o.cl.Servers(), measures: !o.co.IsDeterministic() && len(o.auto) > 0}
		for _, p := range o.auto {
			l := load{bytes: float64(len(tensor.Bytes(p.Value))), sent: 1}
			if p.TopK > 0 {
				l.sent = min(1, p.TopK*2) // an index goes with each element
			}
			o.choose.loads = append(o.choose.loads, l)
		}
		for i, p := range o.params {
			o.sides[i] = uint8(p.Way)
		}
		for i, s := range o.choose.first() {
			o.set(o.auto[i], s)
		}
		for i, p := range o.params {
			var s ps.State[T]
			if err := p.tensor.PullState(ctx, &s); err != nil {
				return named(p.Name, err)
			}
			if s.Steps > 0 {
				restored[i] = 1
			} else if err := p.tensor.SetState(ctx, &p.state); err != nil {
				return named(p.Name, err)
			}
		}
	}
	for _, b := range [][]uint8{o.sides, restored} {
		if err := comm.Broadcast(ctx, o.cl.Workers(), b, 0); err != nil {
			return err
		}
	}
	for i, p := range o.params {
		p.side = Way(o.sides[i])
		var err error
		if restored[i] != 0 {
			err = p.tensor.PullState(ctx, &p.state)
		} else {
			err = comm.Broadcast(ctx, o.cl.Workers(), p.Value, 0)
		}
		if err != nil {
			return named(p.Name, err)
		}
	}
	return nil
}

func (o *Optimizer[T]) worker() int { return o.cl.Workers().Rank() }

// set sets the side of a parameter in the next broadcast.
func (o *Optimizer[T]) set(p *parameter[T], s Way) {
	for i := range o.params {
		if o.params[i] == p {
			o.sides[i] = uint8(s)
		}
	}
}

// named returns err with the name of a parameter.
func named(name string, err error) error { return fmt.Errorf("parameter %s: %w", name, err) }

// Ready submits a gradient before Step does, so that it is on the wire while the program computes
// others. The gradient and the value belong to the Optimizer until Step has returned. A second call in
// a step has no effect, and neither has one with an unknown name, which Step returns as fault.Misuse.
func (o *Optimizer[T]) Ready(name string) {
	p := o.named[name]
	switch {
	case p == nil:
		o.err = fault.New(fault.Misuse, "ready "+name, o.cl.Workers().WorldRank(o.worker()), "name: got one that no parameter has")
	case !o.waiting:
		o.submit(p)
	}
}

func (o *Optimizer[T]) submit(p *parameter[T]) {
	if p.submitted {
		return
	}
	if o.began.IsZero() {
		o.began = time.Now()
	}
	p.submitted = true
	p.ways[p.side].Submit()
}

// Step makes one step of all parameters: it submits the gradients that Ready has not, waits for all,
// and runs the optimizer. The gradients are undefined afterwards. Then it carries out the changes of
// sides that worker 0 has broadcast.
//
// If ctx ends first, the step goes on, and the next call of Step goes on with it. Any other error names
// the parameter, and ends the coordinator on all workers; all later calls return it.
func (o *Optimizer[T]) Step(ctx context.Context) error {
	if o.err == nil {
		if err := o.step(ctx); err != nil {
			if ctx.Err() == nil {
				o.err = err
				o.co.Abort(err) // the other workers wait for this one
			}
			return err
		}
	}
	return o.err
}

func (o *Optimizer[T]) step(ctx context.Context) error {
	if !o.waiting {
		o.waiting, o.done = true, 0
		for _, p := range o.params {
			o.submit(p)
		}
		if o.worker() == 0 {
			o.decide()
		}
		o.broadcast = coordinator.Broadcast(o.co, "sides of parameters", o.sides, 0, coordinator.Priority(1))
	}
	for ; o.done < len(o.params); o.done++ {
		p := o.params[o.done]
		if err := p.ways[p.side].Wait(ctx); err != nil {
			return named(p.Name, err)
		}
		p.state.Steps++
		if p.side == Ring {
			o.update(p.Value, p.Gradient, p.state.Slots, p.state.Steps)
		}
	}
	if err := o.broadcast.Wait(ctx); err != nil {
		return err
	}
	if o.worker() == 0 && !o.began.IsZero() {
		o.measure(time.Since(o.began))
	}
	o.began = time.Time{}
	for i, p := range o.params {
		if err := o.change(ctx, p, Way(o.sides[i])); err != nil {
			return named(p.Name, fmt.Errorf("change from %v to %v: %w", p.side, Way(o.sides[i]), err))
		}
	}
	for _, p := range o.params {
		p.submitted = false
	}
	o.waiting = false
	return nil
}

// decide puts the wanted sides into the broadcast.
func (o *Optimizer[T]) decide() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, s := range o.wanted {
		o.sides[i] = uint8(s)
	}
	clear(o.wanted)
}

// measure tells the chooser how long a step elapsed. Its choice takes effect at the end of the next step.
func (o *Optimizer[T]) measure(elapsed time.Duration) {
	sides := o.choose.next(elapsed)
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, p := range o.params {
		for k := range sides {
			if o.auto[k] == p {
				o.wanted[i] = sides[k]
			}
		}
	}
}

// change moves a parameter to a side. A repetition after an error does the same again.
func (o *Optimizer[T]) change(ctx context.Context, p *parameter[T], to Way) error {
	switch {
	case to == p.side:
		return nil
	case to != Ring && to != Servers:
		return fault.New(fault.Mismatch, "change", o.cl.Workers().WorldRank(o.worker()), "side: got %d; run the same version of the program on all ranks", to)
	case to == Ring:
		steps := p.state.Steps
		if err := p.tensor.PullState(ctx, &p.state); err != nil {
			return err
		}
		if p.state.Steps != steps {
			return fault.New(fault.Mismatch, "change", o.cl.Workers().WorldRank(o.worker()), "steps: got %d from the servers, want %d; push to this tensor by the Optimizer only", p.state.Steps, steps)
		}
	case o.worker() == 0:
		if err := p.tensor.SetState(ctx, &p.state); err != nil {
			return err
		}
	}
	p.side = to
	return nil
}

// Move makes a parameter change to Ring or Servers. Only worker 0 calls it. Worker 0 broadcasts the
// change with the next step that begins, and all workers change at the end of that step. A parameter
// stays on a side until the next Move or, with the side Auto, until a choice of worker 0.
func (o *Optimizer[T]) Move(name string, to Way) error {
	bad := func(format string, args ...any) error {
		return fault.New(fault.Misuse, "move "+name, o.cl.Workers().WorldRank(o.worker()), format, args...)
	}
	switch {
	case o.worker() != 0:
		return bad("worker: got %d, want 0, which decides for all", o.worker())
	case o.named[name] == nil:
		return bad("name: got one that no parameter has; tables, and asynchronous and bounded tensors never change sides")
	case to != Ring && to != Servers:
		return bad("side: got %v, want ring or servers", to)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, p := range o.params {
		if p.Name == name {
			o.wanted[i] = to
		}
	}
	return nil
}

// Way returns the side of a parameter in the next step, and the number of its steps. The name is that
// of a parameter.
func (o *Optimizer[T]) Way(name string) (Way, int64) {
	p := o.named[name]
	if p == nil {
		return Auto, 0
	}
	return p.side, p.state.Steps
}

// Snapshot saves all tensors, as Client.Snapshot does, with the parameters as the last step has left
// them. One worker calls it between two of its steps.
func (o *Optimizer[T]) Snapshot(ctx context.Context, dir string) (*ps.Snapshot, error) {
	for _, p := range o.params {
		if p.side == Ring {
			if err := p.tensor.SetState(ctx, &p.state); err != nil {
				return nil, named(p.Name, err)
			}
		}
	}
	return o.cl.Snapshot(ctx, dir)
}
