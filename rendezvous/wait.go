package rendezvous

import (
	"context"
	"sync"

	"github.com/tutti-go/tutti/mesh"
)

// Either is the condition that one of two requests is done. A nil request is never done.
type Either struct{ A, B *Request }

// Met implements mesh.Condition.
func (ei *Either) Met() bool {
	return ei.A != nil && ei.A.done.Load() || ei.B != nil && ei.B.done.Load()
}

// watch makes the requests wake w when one of them is done. A nil w removes the waiter.
func (ei *Either) watch(w *mesh.Waiter) {
	if ei.A != nil {
		ei.A.waiter.Store(w)
	}
	if ei.B != nil {
		ei.B.waiter.Store(w)
	}
}

// Every wait has two phases. First Poll makes progress on the links for a bounded time, because
// polling notices an imminent message faster than a wake-up does. Then a Waiter is set and Sleep
// parks the goroutine. The goroutine that completes a request wakes its Waiter.

// WaitEither waits until one of ei's requests is done, or ctx or p ends the wait. It does not
// cancel the requests. Meanwhile it makes progress on the given links.
func (e *Engine) WaitEither(ctx context.Context, p mesh.WaitPolicy, ei *Either, also []*mesh.Link) error {
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

// CancelAndWait ends requests with err, and returns when all of them are done. It lets requests
// whose bytes are in flight finish. Afterwards the buffers belong to the caller.
func (e *Engine) CancelAndWait(err error, reqs ...*Request) {
	for _, req := range reqs {
		e.cancel(req, err)
	}
	for _, req := range reqs {
		e.wait(context.Background(), req, nil)
	}
}

// A requestSet is the condition that all requests of a set are done. Sets are pooled, because a new
// mesh.Condition for each call would be an allocation.
type requestSet struct {
	reqs  []*Request
	links []*mesh.Link
}

var requestSets = sync.Pool{New: func() any { return new(requestSet) }}

// Met implements mesh.Condition.
func (s *requestSet) Met() bool {
	for _, req := range s.reqs {
		if !req.done.Load() {
			return false
		}
	}
	return true
}

// addLinks adds the links of req that the set does not have yet.
func (s *requestSet) addLinks(req *Request) {
	for _, l := range req.Links() {
		known := false
		for _, k := range s.links {
			known = known || k == l
		}
		if !known {
			s.links = append(s.links, l)
		}
	}
}

// WaitAll waits for all requests and returns the first error in their order. When ctx or p ends the
// wait, WaitAll cancels the requests that are not matched, and waits for the others.
func (e *Engine) WaitAll(ctx context.Context, p mesh.WaitPolicy, reqs []*Request) error {
	if err := e.waitForSet(ctx, p, reqs); err != nil {
		e.CancelAndWait(err, reqs...)
	}
	for _, req := range reqs {
		if req.err != nil {
			return req.err
		}
	}
	return nil
}

// waitForSet waits until all requests are done, or ctx or p ends the wait.
func (e *Engine) waitForSet(ctx context.Context, p mesh.WaitPolicy, reqs []*Request) error {
	s := requestSets.Get().(*requestSet)
	defer func() {
		clear(s.links)
		clear(s.reqs)
		s.reqs, s.links = s.reqs[:0], s.links[:0]
		requestSets.Put(s)
	}()
	s.reqs = append(s.reqs[:0], reqs...) // a copy, so that the caller's array may stay on its stack
	for _, req := range reqs {
		if !req.done.Load() {
			s.addLinks(req)
		}
	}
	if e.m.Poll(ctx, s, p, s.links) {
		return nil
	}
	// The waiter is set before Sleep checks the condition once more, so no wake-up is lost. The
	// check sees a request that is done before it, and a request that is done later wakes w.
	w := e.m.NewWaiter()
	defer w.Free()
	for _, req := range reqs {
		req.waiter.Store(w)
	}
	err := e.m.Sleep(ctx, w, s, p, s.links)
	for _, req := range reqs {
		req.waiter.Store(nil)
	}
	return err
}
