package coordinator

import (
	"context"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
)

// Gradients manages the gradients of a training. The program declares each gradient once. In each
// step it submits them one by one while the backward pass computes the next ones. It waits for all
// of them before the optimizer updates the parameters:
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
// Only one goroutine at a time may use a Gradients.
type Gradients[T comm.Element] struct {
	co       *Coordinator
	op       comm.Op
	opts     []CallOption
	declared map[string]*Handle
	ready    []*Handle     // the handles submitted in this step
	unknown  error         // the error of a Ready whose name was not declared
	began    time.Duration // the time of the step's first submission

	// These are sums over all steps.
	steps            int
	inFlight, hidden time.Duration
}

// NewGradients returns a Gradients without gradients. The operator op, mostly comm.Mean, reduces
// every gradient, and opts apply to every gradient.
func NewGradients[T comm.Element](co *Coordinator, op comm.Op, opts ...CallOption) *Gradients[T] {
	return &Gradients[T]{co: co, op: op, opts: opts, declared: make(map[string]*Handle)}
}

// Declare adds a gradient. If a gradient of this name exists, Declare replaces its buffer. The
// options opts are added to the options of NewGradients. With Priority, the layers that the next
// forward pass needs first can overtake the others. The buffer belongs to the coordinator from
// Ready to Wait.
func (g *Gradients[T]) Declare(name string, grad []T, opts ...CallOption) {
	all := append(g.opts[:len(g.opts):len(g.opts)], opts...)
	g.declared[name] = Declare(g.co, name, grad, g.op, all...)
}

// Ready submits a gradient that has been declared. The ranks may submit their gradients in
// different orders. Wait returns the errors of Ready.
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

// Wait waits until all gradients of the step are reduced, and then begins the next step. It returns
// the first error, in the order of submission. If ctx ends first, the submissions stay in flight;
// see Handle.Wait.
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

// measure adds a step to the sums. The parameter from is the time at which the step's Wait began.
func (g *Gradients[T]) measure(from time.Duration) {
	var last time.Duration
	for _, h := range g.ready {
		last = max(last, h.completedAt)
	}
	g.steps++
	g.inFlight += last - g.began
	g.hidden += max(0, min(last, from)-g.began)
}

// Overlap says how well the reduction of gradients overlapped with their computation on this rank.
// All results are sums over the steps so far. The result inFlight is the time from a step's first
// submission until its last tensor was done. The result hidden is the part of that time before the
// step's Wait began.
func (g *Gradients[T]) Overlap() (steps int, inFlight, hidden time.Duration) {
	return g.steps, g.inFlight, g.hidden
}
