package coordinator

import (
	"context"
	"time"

	"github.com/tutti-go/tutti/comm"
)

// Gradients are those of a training's steps, submitted one by one while the
// backward pass computes the next ones, and waited for before the optimizer moves
// the parameters:
//
//	g := coordinator.NewGradients[float32](co, comm.Mean)
//	for each step {
//		for i := len(layers) - 1; i >= 0; i-- {
//			... compute layers[i].Grad ...
//			g.Ready(layers[i].Name, layers[i].Grad)
//		}
//		if err := g.Wait(ctx); err != nil { ... }
//		... move the parameters ...
//	}
//
// It is used by one goroutine at a time.
type Gradients[T comm.Element] struct {
	co      *Coordinator
	op      comm.Op
	opts    []CallOption
	handles []*Handle
	began   time.Duration // the step's first submission
	overlap Overlap
}

// An Overlap is how much of the reduction of gradients was hidden behind their
// computation, on this rank.
type Overlap struct {
	Steps    int
	UnderWay time.Duration // from each step's first submission until its last tensor was done
	Waited   time.Duration // and how much of that passed in Wait
}

// Hidden is the share of the time under way in which the rank did other things,
// from 0 to 1.
func (o Overlap) Hidden() float64 {
	if o.UnderWay <= 0 {
		return 0
	}
	return max(0, 1-float64(o.Waited)/float64(o.UnderWay))
}

// NewGradients has gradients reduced by op, mostly comm.Mean, with options that
// hold for all of them.
func NewGradients[T comm.Element](co *Coordinator, op comm.Op, opts ...CallOption) *Gradients[T] {
	return &Gradients[T]{co: co, op: op, opts: opts}
}

// Ready submits a gradient, which is the coordinator's until Wait. Options add to
// those of NewGradients: Priority lets the layers that the next forward pass needs
// first overtake the others. Ranks may differ in their order.
func (g *Gradients[T]) Ready(name string, grad []T, opts ...CallOption) {
	all := g.opts
	if len(opts) > 0 {
		all = append(g.opts[:len(g.opts):len(g.opts)], opts...)
	}
	if len(g.handles) == 0 {
		g.began = time.Since(g.co.started)
	}
	g.handles = append(g.handles, AllReduce(g.co, name, grad, g.op, all...))
}

// Wait returns when all gradients of the step are reduced, or with the error of the
// first that is not, in the order of their submission; then the next step begins.
// When ctx ends first, what is under way stays so; see Handle.Wait.
func (g *Gradients[T]) Wait(ctx context.Context) error {
	if len(g.handles) == 0 {
		return nil
	}
	from := time.Since(g.co.started)
	err := WaitAll(ctx, g.handles...)
	if err == nil {
		g.measure(from)
	}
	clear(g.handles) // they know the program's buffers
	g.handles = g.handles[:0]
	return err
}

// measure counts a step that has been waited for since from.
func (g *Gradients[T]) measure(from time.Duration) {
	var last time.Duration
	for _, h := range g.handles {
		last = max(last, h.completedAt)
	}
	g.overlap.Steps++
	g.overlap.UnderWay += last - g.began
	g.overlap.Waited += max(0, last-from)
}

// Overlap is that of all steps so far.
func (g *Gradients[T]) Overlap() Overlap { return g.overlap }
