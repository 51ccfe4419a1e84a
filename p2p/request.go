package p2p

import (
	"context"

	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/rendezvous"
)

// A Request is a send or a receive under way. Its buffer is the caller's again
// when Wait has returned, or Test has reported true. One goroutine at a time may
// use a Request.
type Request struct {
	g      *Group
	op     *rendezvous.Request // nil once it is done
	recv   bool
	status Status
	err    error
}

// Isend begins to send b, and never blocks.
func (g *Group) Isend(to, tag int, print uint64, b []byte) *Request {
	if err := g.check("isend", "destination rank", to, tag, false); err != nil {
		return &Request{g: g, err: err}
	}
	return &Request{g: g, op: g.talk.PostSend(g.ranks[to], int32(tag), print, b, rendezvous.Auto)}
}

// Irecv begins to receive into b, and never blocks.
func (g *Group) Irecv(from, tag int, print uint64, b []byte) *Request {
	if err := g.check("irecv", "source rank", from, tag, true); err != nil {
		return &Request{g: g, err: err}
	}
	return &Request{g: g, recv: true, op: g.talk.PostRecv(g.source(from), int32(tag), print, b)}
}

// Wait returns when the request is done. When ctx or p ends first, a request
// that has met nothing is withdrawn; one that has is waited for.
func (r *Request) Wait(ctx context.Context, p mesh.WaitPolicy) (Status, error) {
	if r.op != nil {
		r.g.e.Wait(ctx, r.op, p)
		r.reap()
	}
	return r.status, r.err
}

// Test reports whether the request is done, and moves its link once to find out.
func (r *Request) Test() (st Status, done bool, err error) {
	if r.op != nil && !r.op.Met() {
		for _, l := range r.op.Links() {
			l.Progress()
		}
		if !r.op.Met() {
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

// Ready reports whether Wait would return at once, without moving anything.
func (r *Request) Ready() bool { return r.op == nil || r.op.Met() }

// Watch has w woken when the request is done; nil ends that.
func (r *Request) Watch(w *mesh.Waiter) {
	if r.op != nil {
		r.op.Watch(w)
	}
}

// Links are the links that the request's message can come or go on.
func (r *Request) Links() []*mesh.Link {
	if r.op == nil {
		return nil
	}
	return r.op.Links()
}
