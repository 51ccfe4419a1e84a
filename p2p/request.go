package p2p

import (
	"context"

	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/rendezvous"
)

// A MessageRequest is MPI_Request for one message: a send or a receive in progress. Its buffer is
// the caller's again when Wait has returned, or Test has reported true. One goroutine at a time may
// use a MessageRequest.
type MessageRequest struct {
	g      *Group
	req    *rendezvous.Request // nil once it is done
	recv   bool
	status MessageInfo
	err    error
}

// Isend begins to send b. It never blocks; an invalid argument is the request's error.
func (g *Group) Isend(to, tag int, fingerprint uint64, b []byte) *MessageRequest {
	if err := g.check("isend", "destination rank", to, tag, false); err != nil {
		return &MessageRequest{g: g, err: err}
	}
	return &MessageRequest{g: g, req: g.messages.PostSend(g.ranks[to], int32(tag), fingerprint, b, rendezvous.Auto)}
}

// Irecv begins to receive into b. It never blocks; an invalid argument is the request's error.
func (g *Group) Irecv(from, tag int, fingerprint uint64, b []byte) *MessageRequest {
	if err := g.check("irecv", "source rank", from, tag, true); err != nil {
		return &MessageRequest{g: g, err: err}
	}
	return &MessageRequest{g: g, recv: true, req: g.messages.PostRecv(g.source(from), int32(tag), fingerprint, b)}
}

// Wait returns when the request is done. When ctx or p ends the wait first, a request that nothing
// has matched is canceled, and a matched one is waited for.
func (r *MessageRequest) Wait(ctx context.Context, p mesh.WaitPolicy) (MessageInfo, error) {
	if r.req != nil {
		r.g.e.Wait(ctx, r.req, p)
		r.reap()
	}
	return r.status, r.err
}

// Test reports whether the request is done. It moves its link once to find out.
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

// reap copies the result out of a request that is done, and frees it.
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

// Ready reports whether Wait would return at once. It moves nothing.
func (r *MessageRequest) Ready() bool { return r.req == nil || r.req.Met() }

// Watch wakes w when the request is done; nil ends that.
func (r *MessageRequest) Watch(w *mesh.Waiter) {
	if r.req != nil {
		r.req.Watch(w)
	}
}

// Links returns the links that the request's message can arrive or leave on.
func (r *MessageRequest) Links() []*mesh.Link {
	if r.req == nil {
		return nil
	}
	return r.req.Links()
}
