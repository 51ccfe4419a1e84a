package p2p

import (
	"context"

	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/rendezvous"
)

// A MessageRequest is a send or a receive in progress, like an MPI_Request. The caller may reuse
// the buffer when Wait has returned or Test has reported true. Only one goroutine at a time may use
// a MessageRequest.
type MessageRequest struct {
	g      *Group
	req    *rendezvous.Request // nil once it is done
	recv   bool
	status MessageInfo
	err    error
}

// Isend begins to send b. It never blocks. If an argument is invalid, Wait and Test return the
// error.
func (g *Group) Isend(to, tag int, fingerprint uint64, b []byte) *MessageRequest {
	if err := g.check("isend", "destination rank", to, tag, false); err != nil {
		return &MessageRequest{g: g, err: err}
	}
	return &MessageRequest{g: g, req: g.messages.PostSend(g.ranks[to], int32(tag), fingerprint, b, rendezvous.Auto)}
}

// Irecv begins to receive into b. It never blocks. If an argument is invalid, Wait and Test return
// the error.
func (g *Group) Irecv(from, tag int, fingerprint uint64, b []byte) *MessageRequest {
	if err := g.check("irecv", "source rank", from, tag, true); err != nil {
		return &MessageRequest{g: g, err: err}
	}
	return &MessageRequest{g: g, recv: true, req: g.messages.PostRecv(g.source(from), int32(tag), fingerprint, b)}
}

// Wait blocks until the request is done. If ctx or p ends the wait first, Wait cancels a request
// that is not matched yet. If the request is matched, Wait still waits until it is done.
func (r *MessageRequest) Wait(ctx context.Context, p mesh.WaitPolicy) (MessageInfo, error) {
	if r.req != nil {
		r.g.e.Wait(ctx, r.req, p)
		r.reap()
	}
	return r.status, r.err
}

// Test makes progress once on the request's links and reports whether the request is done.
func (r *MessageRequest) Test() (st MessageInfo, done bool, err error) {
	if r.req != nil && !r.req.Met() {
		for _, l := range r.req.Links() {
			l.Progress()
		}
		if !r.req.Met() {
			return MessageInfo{}, false, nil
		}
	}
	r.reap()
	return r.status, true, r.err
}

// reap copies the result of a finished request to r, and frees the request.
func (r *MessageRequest) reap() {
	if r.req == nil {
		return
	}
	if r.recv {
		r.status = r.g.requestInfo(r.req)
	}
	r.err = r.req.Err()
	r.req.Free()
	r.req = nil
}

// Ready reports whether Wait would return at once. It makes no progress on links.
func (r *MessageRequest) Ready() bool { return r.req == nil || r.req.Met() }

// Watch makes the request wake w when it is done. A nil w removes the waiter.
func (r *MessageRequest) Watch(w *mesh.Waiter) {
	if r.req != nil {
		r.req.Watch(w)
	}
}

// activeLinks returns the links on which the request's message can arrive or leave.
func (r *MessageRequest) activeLinks() []*mesh.Link {
	if r.req == nil {
		return nil
	}
	return r.req.Links()
}
