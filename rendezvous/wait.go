package rendezvous

import (
	"context"
	"sync"

	"github.com/tutti-go/tutti/mesh"
)

// WaitOn returns when op is done or ctx or p has ended the wait; op goes on in
// that case. It moves the links in also besides op's own.
func (e *Engine) WaitOn(ctx context.Context, p mesh.Patience, op *Op, also []*mesh.Link) error {
	if op.done.Load() {
		return nil
	}
	w := mesh.NewWaiter()
	op.waiter.Store(w)
	err := e.m.Wait(ctx, w, op, p, also...)
	op.waiter.Store(nil)
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
		s.ops, s.links = nil, s.links[:0]
		sets.Put(s)
	}()
	s.ops = ops
	if s.Happened() {
		return nil
	}
	w := mesh.NewWaiter()
	defer w.Free()
	for _, op := range ops {
		op.waiter.Store(w)
		if !op.done.Load() {
			s.addLinks(op)
		}
	}
	err := e.m.Wait(ctx, w, s, p, s.links...)
	for _, op := range ops {
		op.waiter.Store(nil)
	}
	return err
}
