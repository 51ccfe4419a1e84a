package coordinator

import (
	"hash/fnv"
	"slices"

	"github.com/tutti-go/tutti/coordinator/negotiate"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/callsite"
)

// A TensorGroup collects submissions that run as one: none of them runs before all of them are
// ready on all ranks, and a mismatch in one fails all. One goroutine uses it.
type TensorGroup struct {
	co      *Coordinator
	handles []*Handle
}

// Group submits as one what collect submits to the group. All of it must be of one process set.
// Nothing is submitted before collect has returned, so collect must not wait for any of it. The
// handles cannot be submitted again one by one.
func (co *Coordinator) Group(collect func(g *TensorGroup)) {
	g := &TensorGroup{co: co}
	collect(g)
	g.submitAll()
}

// coordinator implements Submitter.
func (g *TensorGroup) coordinator() *Coordinator { return g.co }

// submit adds a handle to the group, or fails it if it is invalid by itself.
func (g *TensorGroup) submit(h *Handle, at callsite.Site) {
	g.co.mu.Lock()
	defer g.co.mu.Unlock()
	h.restart()
	h.grouped = true
	if h.invalid != nil {
		h.complete(h.invalid)
		return
	}
	h.requests[0].Site = g.co.describeSite(at)
	g.handles = append(g.handles, h)
}

// submitAll submits the handles under a number that follows from their names, so that all ranks
// give the group the same one.
func (g *TensorGroup) submitAll() {
	if len(g.handles) == 0 {
		return
	}
	var names []string
	for _, h := range g.handles {
		names = append(names, h.requests[0].Name)
	}
	slices.Sort(names)
	id := fnv.New64a()
	for _, n := range names {
		id.Write([]byte(n))
		id.Write([]byte{0})
	}
	first := &g.handles[0].requests[0]
	for _, h := range g.handles {
		q := &h.requests[0]
		if q.Set != first.Set {
			g.co.completeHandles(g.handles, fault.New(fault.Misuse, "group", g.co.worldRank(g.co.rank),
				"tensors %q and %q are of different process sets; submit a group for each set", first.Name, q.Name))
			return
		}
		q.Group, q.GroupSize = id.Sum64()|1, len(g.handles)
	}
	g.co.submitTogether(g.handles)
}

// completeHandles fails handles that have not been submitted.
func (co *Coordinator) completeHandles(hs []*Handle, err error) {
	co.mu.Lock()
	defer co.mu.Unlock()
	for _, h := range hs {
		h.complete(err)
	}
}

// submitTogether submits the requests of handles in flight as one.
func (co *Coordinator) submitTogether(hs []*Handle) {
	in := negotiate.Submit{Requests: make([]negotiate.TensorRequest, len(hs)), Submissions: make([]negotiate.SubmissionID, len(hs))}
	now := co.timestamp()
	co.mu.Lock()
	if co.closed {
		for _, h := range hs {
			h.complete(co.closedError(h.describe()))
		}
		co.mu.Unlock()
		return
	}
	for i, h := range hs {
		in.Requests[i], in.Submissions[i] = h.requests[0], co.handles.add(h)
		h.submittedAt = now
	}
	co.mu.Unlock()
	co.stepInline(in)
}
