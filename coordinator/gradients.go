package coordinator

import (
	"context"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
)

// Gradients are those of a training. They are declared once, submitted one by one while the
// backward pass computes the next ones, and waited for before the optimizer moves the parameters:
//
//	g := coordinator.NewGradients[float32](co, comm.Mean)
//	for i, layer := range layers {
//		g.Declare(layer.Name, layer.Grad, coordinator.Priority(-i))
//	}
//	for each step {
//		for i := len(layers) - 1; i >= 0; i-- {
//			... compute layers[i].Grad ...
//			g.Ready(layers[i].Name)
//		}
//		if err := g.Wait(ctx); err != nil { ... }
//		... move the parameters ...
//	}
//
// One goroutine at a time uses it.
type Gradients[T comm.Element] struct {
	co       *Coordinator
	op       comm.Op
	opts     []CallOption
	declared map[string]*Handle
	ready    []*Handle     // of this step
	unknown  error         // a name was ready that was not declared
	began    time.Duration // the step's first submission

	// Sums over all steps.
	steps            int
	inFlight, hidden time.Duration
}

// NewGradients has gradients reduced by op, mostly comm.Mean, with options that
// hold for all of them.
func NewGradients[T comm.Element](co *Coordinator, op comm.Op, opts ...CallOption) *Gradients[T] {
	return &Gradients[T]{co: co, op: op, opts: opts, declared: make(map[string]*Handle)}
}

// Declare adds a gradient, or gives one of that name another buffer. Its options add to those of
// NewGradients: Priority lets the layers that the next forward pass needs first overtake the
// others. The buffer is the coordinator's from Ready to Wait.
func (g *Gradients[T]) Declare(name string, grad []T, opts ...CallOption) {
	all := append(g.opts[:len(g.opts):len(g.opts)], opts...)
	g.declared[name] = Declare(g.co, name, grad, g.op, all...)
}

// Ready submits a gradient that has been declared. Ranks may differ in the order of their
// gradients. What is wrong is returned by Wait.
func (g *Gradients[T]) Ready(name string) {
	h := g.declared[name]
	if h == nil {
		g.unknown = fault.New(fault.Misuse, "gradient "+name, g.co.worldRank(g.co.rank), "Ready was called without Declare; declare the gradient first")
		return
	}
	if len(g.ready) == 0 {
		g.began = time.Since(g.co.started)
	}
	h.Submit()
	g.ready = append(g.ready, h)
}

// Wait returns when all gradients of the step are reduced, or with the error of the
// first that is not, in the order of their submission; then the next step begins.
// When ctx ends first, what is in flight stays so; see Handle.Wait.
func (g *Gradients[T]) Wait(ctx context.Context) error {
	from := time.Since(g.co.started)
	err := WaitAll(ctx, g.ready...)
	if err == nil && len(g.ready) > 0 {
		g.measure(from)
	}
	if g.unknown != nil {
		err, g.unknown = g.unknown, nil
	}
	g.ready = g.ready[:0]
	return err
}

// measure counts a step whose Wait began at from.
func (g *Gradients[T]) measure(from time.Duration) {
	var last time.Duration
	for _, h := range g.ready {
		last = max(last, h.completedAt)
	}
	g.steps++
	g.inFlight += last - g.began
	g.hidden += max(0, min(last, from)-g.began)
}

// Overlap returns how much of the reduction of gradients was hidden behind their computation on
// this rank, as sums over all steps so far: the time from each step's first submission until its
// last tensor was done, and the part of it that passed before Wait.
func (g *Gradients[T]) Overlap() (steps int, inFlight, hidden time.Duration) {
	return g.steps, g.inFlight, g.hidden
}
