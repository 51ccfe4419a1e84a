package rendezvous

import (
	"context"
	"sync"

	"github.com/tutti-go/tutti/mesh"
)

// Either is the event that one of two ops is done; a nil op never is.
type Either struct{ A, B *Op }

// Happened implements mesh.Event.
func (ei *Either) Happened() bool {
	return ei.A != nil && ei.A.done.Load() || ei.B != nil && ei.B.done.Load()
}

func (ei *Either) watch(w *mesh.Waiter) {
	if ei.A != nil {
		ei.A.waiter.Store(w)
	}
	if ei.B != nil {
		ei.B.waiter.Store(w)
	}
}

// WaitEither returns when one of ei's ops is done, or ctx or p has ended the
// wait; both go on in that case. It moves the links in also.
func (e *Engine) WaitEither(ctx context.Context, p mesh.Patience, ei *Either, also []*mesh.Link) error {
	if e.m.Poll(ctx, ei, p, also) {
		return nil
	}
	w := e.m.NewWaiter()
	ei.watch(w)
	err := e.m.Sleep(ctx, w, ei, p, also)
	ei.watch(nil)
	w.Free()
	return err
}

// Settle ends ops with err, except those that their peers are moving bytes for,
// and returns when all are done: from then on their buffers are the caller's.
func (e *Engine) Settle(err error, ops ...*Op) {
	for _, op := range ops {
		e.cancel(op, err)
	}
	for _, op := range ops {
		e.wait(context.Background(), op, nil)
	}
}

// A set is the event that all of some ops are done.
type set struct {
	ops   []*Op
	links []*mesh.Link
}

var sets = sync.Pool{New: func() any { return new(set) }}

func (s *set) Happened() bool {
	for _, op := range s.ops {
		if !op.done.Load() {
			return false
		}
	}
	return true
}

func (s *set) addLinks(op *Op) {
	for _, l := range op.Links() {
		known := false
		for _, k := range s.links {
			known = known || k == l
		}
		if !known {
			s.links = append(s.links, l)
		}
	}
}

// WaitAll returns when all ops are done, with the first error in their order.
// When ctx or p ends the wait, ops that have met nothing leave without a trace.
func (e *Engine) WaitAll(ctx context.Context, p mesh.Patience, ops []*Op) error {
	if err := e.waitSet(ctx, p, ops); err != nil {
		e.Settle(err, ops...)
	}
	for _, op := range ops {
		if op.err != nil {
			return op.err
		}
	}
	return nil
}

func (e *Engine) waitSet(ctx context.Context, p mesh.Patience, ops []*Op) error {
	s := sets.Get().(*set)
	defer func() {
		clear(s.links)
		clear(s.ops)
		s.ops, s.links = s.ops[:0], s.links[:0]
		sets.Put(s)
	}()
	s.ops = append(s.ops[:0], ops...) // a copy, so that the caller's array need not live on the heap
	for _, op := range ops {
		if !op.done.Load() {
			s.addLinks(op)
		}
	}
	if e.m.Poll(ctx, s, p, s.links) {
		return nil
	}
	w := e.m.NewWaiter()
	defer w.Free()
	for _, op := range ops {
		op.waiter.Store(w)
	}
	err := e.m.Sleep(ctx, w, s, p, s.links)
	for _, op := range ops {
		op.waiter.Store(nil)
	}
	return err
}
