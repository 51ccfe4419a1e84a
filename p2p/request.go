package p2p

import (
	"context"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/rendezvous"
)

// A Request is a send or a receive under way. Its buffer is the caller's again
// when Wait has returned, or Test has reported true. One goroutine at a time may
// use a Request.
type Request struct {
	g      *Group
	op     *rendezvous.Op // nil once it is done
	recv   bool
	status Status
	err    error
}

// Isend begins to send b, and never blocks.
func (g *Group) Isend(to, tag int, print uint64, b []byte) *Request {
	if err := g.check("isend", "destination rank", to, tag, false); err != nil {
		return &Request{g: g, err: err}
	}
	return &Request{g: g, op: g.talk.Start(g.ranks[to], int32(tag), print, b, rendezvous.Auto)}
}

// Irecv begins to receive into b, and never blocks.
func (g *Group) Irecv(from, tag int, print uint64, b []byte) *Request {
	if err := g.check("irecv", "source rank", from, tag, true); err != nil {
		return &Request{g: g, err: err}
	}
	return &Request{g: g, recv: true, op: g.talk.Post(g.source(from), int32(tag), print, b)}
}

// Wait returns when the request is done. When ctx or p ends first, a request
// that has met nothing is withdrawn; one that has is waited for.
func (r *Request) Wait(ctx context.Context, p mesh.Patience) (Status, error) {
	if r.op != nil {
		r.g.e.Wait(ctx, r.op, p)
		r.reap()
	}
	return r.status, r.err
}

// Test reports whether the request is done, and moves its link once to find out.
func (r *Request) Test() (st Status, done bool, err error) {
	if r.op != nil && !r.op.Happened() {
		for _, l := range r.op.Links() {
			l.Progress()
		}
		if !r.op.Happened() {
			return Status{}, false, nil
		}
	}
	r.reap()
	return r.status, true, r.err
}

func (r *Request) reap() {
	if r.op == nil {
		return
	}
	if r.recv {
		r.status = r.g.opStatus(r.op)
	}
	r.err = r.op.Err()
	r.op.Free()
	r.op = nil
}

// WaitAll returns when all requests are done, with the first error in their order.
func WaitAll(ctx context.Context, p mesh.Patience, reqs ...*Request) error {
	var ops []*rendezvous.Op
	var e *rendezvous.Engine
	for _, r := range reqs {
		if r.op != nil {
			ops, e = append(ops, r.op), r.g.e
		}
	}
	if e != nil {
		e.WaitAll(ctx, p, ops)
	}
	var first error
	for _, r := range reqs {
		r.reap()
		if first == nil {
			first = r.err
		}
	}
	return first
}

// WaitAny returns the index of a request that is done, and its result. Requests
// found done before are passed over as long as another is not; when ctx or p ends
// the wait, all go on and the index is -1.
func WaitAny(ctx context.Context, p mesh.Patience, reqs ...*Request) (int, Status, error) {
	var ops []*rendezvous.Op
	var at []int
	for i, r := range reqs {
		if r.op != nil {
			ops, at = append(ops, r.op), append(at, i)
		}
	}
	if len(ops) == 0 {
		return anyDone(reqs)
	}
	i, err := reqs[at[0]].g.e.WaitAny(ctx, p, ops)
	if err != nil {
		return -1, Status{}, err
	}
	r := reqs[at[i]]
	r.reap()
	return at[i], r.status, r.err
}

func anyDone(reqs []*Request) (int, Status, error) {
	if len(reqs) == 0 {
		return -1, Status{}, fault.New(fault.Misuse, "waitany", 0, "no request is given")
	}
	return 0, reqs[0].status, reqs[0].err
}
