package coordinator

import (
	"errors"
	"hash/fnv"
	"slices"

	"github.com/tutti-go/tutti/coordinator/negotiate"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/callsite"
)

// A TensorGroup collects submissions that run together. No tensor of a group runs before all
// tensors of the group are ready on all ranks. If one tensor has a mismatch, all tensors of the
// group fail. All ranks must submit the same groups. The tensors of groups that differ fail with
// fault.Mismatch, and so does every later submission of them. Only one goroutine may use a
// TensorGroup.
//
// If a tensor is invalid on one rank, that rank submits no tensor of the group. It gets
// fault.Misuse, and the other ranks get fault.Mismatch.
type TensorGroup struct {
	co      *Coordinator
	handles []*Handle
	invalid *Handle // the first invalid handle, or nil
}

// Group calls collect, and then submits together the operations that collect has submitted to g.
// All operations of a group must be in one process set. Nothing is submitted before collect
// returns, so collect must not wait for these operations. Their handles cannot be submitted again.
func (co *Coordinator) Group(collect func(g *TensorGroup)) {
	g := &TensorGroup{co: co}
	collect(g)
	g.submitAll()
}

// coordinator implements Submitter.
func (g *TensorGroup) coordinator() *Coordinator { return g.co }

// submit adds a handle to the group. If the handle is invalid, submitAll fails the whole group.
func (g *TensorGroup) submit(h *Handle, at callsite.Site) {
	g.co.mu.Lock()
	defer g.co.mu.Unlock()
	h.restart()
	h.grouped = true
	h.requests[0].Site = g.co.describeSite(at)
	g.handles = append(g.handles, h)
	if h.invalid != nil && g.invalid == nil {
		g.invalid = h
	}
}

// submitAll submits the handles as a group. The group's number is computed from the names of the
// handles, so that all ranks use the same number.
func (g *TensorGroup) submitAll() {
	if len(g.handles) == 0 {
		return
	}
	if h := g.invalid; h != nil {
		g.co.refuse(g.handles, fault.New(fault.Misuse, "group", g.co.worldRank(g.co.rank), "no tensor of the group was submitted: %w", h.invalid))
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
			g.co.refuse(g.handles, fault.New(fault.Misuse, "group", g.co.worldRank(g.co.rank),
				"tensors %q and %q are of different process sets; submit a group for each set", first.Name, q.Name))
			return
		}
		q.Group, q.GroupSize = id.Sum64()|1, len(g.handles)
	}
	g.co.submitTogether(g.handles)
}

// refuse ends a call that is not submitted, and tells the other ranks, which may wait for this
// rank. An invalid handle ends with its own error, and every other handle with cause.
func (co *Coordinator) refuse(hs []*Handle, cause error) {
	in := negotiate.Refused{Site: hs[0].requests[0].Site, Call: hs[0].requests[0].Call(), Err: cause}
	if f := (*fault.Error)(nil); errors.As(cause, &f) {
		in.Err = f.Err
	}
	co.mu.Lock()
	for _, h := range hs {
		q := &h.requests[0]
		in.Tensors = append(in.Tensors, negotiate.TensorName{Set: q.Set, Name: q.Name})
		err := cause
		if h.invalid != nil {
			err = h.invalid
		}
		h.complete(err)
	}
	co.mu.Unlock()
	co.stepInline(in)
}

// submitTogether submits the requests of handles in flight as one input.
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
