package comm

import (
	"context"
	"sync"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/tensor"
)

// A Request is a message or a collective under way. Its buffers are the
// caller's again when Wait has returned, or Test has reported true. One
// goroutine at a time may use a Request; Wait must be called, or Test until it
// is true, so that the request's memory is given back.
type Request struct {
	c      *Comm
	sig    signature
	msg    *p2p.MessageRequest // a message; nil for a collective
	cancel context.CancelCauseFunc

	done   chan struct{} // a collective: closed at its end
	err    error
	mu     sync.Mutex // guards waiter
	waiter *mesh.Waiter
	status Status
}

// ISend begins to send buf to rank to, and never blocks; see Send.
func ISend[T Element](c *Comm, to, tag int, buf []T) *Request {
	sig := signature{callName: "isend", dtype: tensor.TypeOf[T](), count: len(buf), root: -1, peer: to, tag: tag}
	return &Request{c: c, sig: sig, msg: c.group.Isend(to, tag, typeFingerprint[T](), tensor.Bytes(buf))}
}

// IRecv begins to receive into buf, and never blocks; see Recv.
func IRecv[T Element](c *Comm, from, tag int, buf []T) *Request {
	sig := signature{callName: "irecv", dtype: tensor.TypeOf[T](), count: len(buf), root: -1, peer: peerOrAny(from), tag: tag}
	return &Request{c: c, sig: sig, msg: c.group.Irecv(from, tag, typeFingerprint[T](), tensor.Bytes(buf))}
}

// Wait returns when the request is done. When ctx ends first, a message that has
// met nothing is withdrawn, and a collective's communicator is revoked on every
// rank, as for a blocking one.
func (r *Request) Wait(ctx context.Context) (Status, error) {
	if r.msg == nil {
		return r.waitCollective(ctx)
	}
	cl := r.call(ctx)
	st, err := r.msg.Wait(ctx, cl)
	return Status(st), r.c.endMessage(cl, err)
}

// call is the wait for a message as a call of its own.
func (r *Request) call(ctx context.Context) *call {
	cl := newCall(r.c)
	cl.signature = r.sig
	cl.callName = "wait for " + r.sig.callName
	cl.site.Capture()
	_, cl.hasLimit = ctx.Deadline()
	r.c.rt.calls.beginMessage(cl)
	return cl
}

func (r *Request) waitCollective(ctx context.Context) (Status, error) {
	select {
	case <-r.done:
	case <-ctx.Done():
		r.cancel(ctx.Err())
		<-r.done // soon: its communicator is revoked
	}
	return r.status, r.err
}

// Test reports whether the request is done.
func (r *Request) Test() (st Status, done bool, err error) {
	if r.msg == nil {
		select {
		case <-r.done:
			return r.status, true, r.err
		default:
			return Status{}, false, nil
		}
	}
	s, done, err := r.msg.Test()
	if err != nil {
		err = r.c.withOp(r.sig.String(), err)
	}
	return Status(s), done, err
}

// isDone reports whether Wait would return at once, without moving anything.
func (r *Request) isDone() bool {
	if r.msg != nil {
		return r.msg.Ready()
	}
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// watch has w woken when the request is done; nil ends that.
func (r *Request) watch(w *mesh.Waiter) {
	if r.msg != nil {
		r.msg.Watch(w)
		return
	}
	r.mu.Lock()
	r.waiter = w
	r.mu.Unlock()
}

// finish ends a collective request.
func (r *Request) finish(err error) {
	r.err = err
	close(r.done)
	r.mu.Lock()
	if r.waiter != nil {
		r.waiter.Wake()
	}
	r.mu.Unlock()
}

// waitable refuses what cannot be waited for, before anything is.
func waitable(op string, ctx context.Context, rs []*Request) error {
	for i, r := range rs {
		if r == nil {
			return fault.New(fault.Misuse, op, -1, "request %d of %d is nil; leave those out that were never started", i, len(rs))
		}
	}
	if ctx == nil {
		return fault.New(fault.Misuse, op, -1, "the context is nil; context.Background() waits without a limit")
	}
	return nil
}

// WaitAll returns when all requests are done, with the first error in their order.
// A nil request among them is fault.Misuse, before anything is waited for.
func WaitAll(ctx context.Context, rs ...*Request) error {
	if err := waitable("waitall", ctx, rs); err != nil {
		return err
	}
	var first error
	for _, r := range rs {
		if _, err := r.Wait(ctx); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// WaitAny returns the index of a request that is done, and its result. When ctx
// ends first, the index is -1 and all requests go on. A nil request among them is
// fault.Misuse.
func WaitAny(ctx context.Context, rs ...*Request) (int, Status, error) {
	if len(rs) == 0 {
		return -1, Status{}, nil
	}
	if err := waitable("waitany", ctx, rs); err != nil {
		return -1, Status{}, err
	}
	ev := anyOf(rs)
	w := rs[0].c.rt.mesh.NewWaiter()
	var links []*mesh.Link
	for _, r := range rs {
		r.watch(w)
		if r.msg != nil {
			links = append(links, r.msg.Links()...)
		}
	}
	cl := rs[0].call(ctx)
	err := rs[0].c.rt.mesh.Wait(ctx, w, ev, cl, links...)
	for _, r := range rs {
		r.watch(nil)
	}
	w.Free()
	if err = rs[0].c.endMessage(cl, err); err != nil {
		return -1, Status{}, err
	}
	for i, r := range rs {
		if r.isDone() {
			st, err := r.Wait(ctx)
			return i, st, err
		}
	}
	return -1, Status{}, nil
}

// anyOf is the event that one of some requests is done.
type anyOf []*Request

func (rs anyOf) Met() bool {
	for _, r := range rs {
		if r.isDone() {
			return true
		}
	}
	return false
}
