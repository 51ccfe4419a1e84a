package comm

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/tensor"
)

// A Request is a message or a collective that does not block: what ISend, IRecv and the
// collectives whose names begin with I return.
//
//	r := comm.IAllReduce(c, grads, comm.Sum)
//	... // compute what does not need the sum
//	_, err := r.Wait(ctx)
//
// Its buffers belong to the library while it is active, and it makes progress whatever the
// caller does: a goroutine carries a collective out, and the mesh moves a message.
//
//	state      entered by                        left by
//	inactive   Persistent; Wait, Test and the    Start
//	           like, once they report its end
//	active     ISend, IRecv, IAllReduce, ...;    Wait or Test that reports its end
//	           Start
//	freed      Free of an inactive one
//
// A request that is not persistent starts active, and is over once it is inactive. One that is
// persistent (MPI-4's persistent communication) starts inactive, and can be started any number
// of times: its buffers, and all else that the call was given, stay the same, and what is in
// the buffers may change between two starts. All ranks start persistent collectives in an
// order that agrees with that of all their collectives on the communicator. A start is
// compared with the calls of other ranks as every call is, and matches the blocking and the
// non-blocking form, too, where those go by messages. The start of a persistent collective
// allocates nothing.
//
// One goroutine at a time may use a Request. Wait must be called, or Test until it reports
// true, so that the memory of the request is reclaimed. A persistent collective holds a
// goroutine until Free, or until the job is closed.
//
// Errors of a request that was not begun, because its arguments are wrong or another goroutine
// is inside a collective, are reported by Wait and Test, or by Start of a persistent one. They
// touch no other rank.
type Request struct {
	c      *Comm
	sig    signature
	msg    *p2p.MessageRequest // the message of the last start; nil for a collective
	work   *collectiveWork     // nil for a message
	post   func() *p2p.MessageRequest
	bad    error // why a persistent request could not be prepared
	err    error // of the last start
	status Status

	persistent, active, freed bool

	refused bool // not begun, for the reason in err, which no wait has reported yet
}

// ISend begins to send buf to rank to, and never blocks; see Send (MPI_Isend, and
// MPI_Send_init with the option Persistent, the only one allowed). The request is done when
// Send would return: the message need not have been received.
func ISend[T Element](c *Comm, to, tag int, buf []T, opts ...CallOption) *Request {
	sig := signature{callName: "isend", dtype: tensor.TypeOf[T](), count: len(buf), root: -1, peer: to, tag: tag}
	r := &Request{c: c, sig: sig}
	if r.allowPersistent(opts); r.persistent {
		r.sendLater(to, tag, tensor.Bytes(buf))
	} else if r.bad == nil {
		r.msg, r.active = c.group.Isend(to, tag, fingerprintOf(sig.dtype), tensor.Bytes(buf)), true
	}
	return r
}

// IRecv begins to receive into buf, and never blocks; see Recv (MPI_Irecv, and MPI_Recv_init
// with the option Persistent, the only one allowed). Wait returns the status of the message.
func IRecv[T Element](c *Comm, from, tag int, buf []T, opts ...CallOption) *Request {
	sig := signature{callName: "irecv", dtype: tensor.TypeOf[T](), count: len(buf), root: -1, peer: peerOrAny(from), tag: tag}
	r := &Request{c: c, sig: sig}
	if r.allowPersistent(opts); r.persistent {
		r.recvLater(from, tag, tensor.Bytes(buf))
	} else if r.bad == nil {
		r.msg, r.active = c.group.Irecv(from, tag, fingerprintOf(sig.dtype), tensor.Bytes(buf)), true
	}
	return r
}

// sendLater prepares a persistent send. It is a function of its own so that an ISend that is
// not persistent allocates no closure.
func (r *Request) sendLater(to, tag int, b []byte) {
	r.post = func() *p2p.MessageRequest { return r.c.group.Isend(to, tag, fingerprintOf(r.sig.dtype), b) }
}

// recvLater prepares a persistent receive; see sendLater.
func (r *Request) recvLater(from, tag int, b []byte) {
	r.post = func() *p2p.MessageRequest { return r.c.group.Irecv(from, tag, fingerprintOf(r.sig.dtype), b) }
}

// allowPersistent reads the options of a message. Other options are wrong; the request then
// reports that from Start, Wait and Test, as a wrong argument does.
func (r *Request) allowPersistent(opts []CallOption) {
	for _, o := range opts {
		if o.kind != optionPersistent {
			r.bad = r.c.misuse(r.sig.callName, "options: got %v, want none but Persistent", o.kind)
			r.err, r.refused = r.bad, true
			return
		}
		r.persistent = true
	}
}

// Start starts a persistent request and returns at once. For a collective ctx bounds the
// operation, as in a blocking call: when it ends, the communicator is revoked on every
// rank. A message is bounded by the ctx of Wait alone. An error says that the request was
// not started: fault.Misuse while it is active, after Free, for a request that is not
// persistent or has wrong arguments, and beside another goroutine's collective; else why
// the communicator takes no more calls.
func (r *Request) Start(ctx context.Context) error {
	if err := checkContext("start", ctx); err != nil {
		return err
	}
	switch {
	case r.bad != nil:
		return r.bad
	case !r.persistent:
		return r.c.misuse("start "+r.sig.callName, "the request is not persistent, and was started when it was made; give its call the option Persistent")
	case r.freed:
		return r.c.misuse("start "+r.sig.callName, "the request was freed")
	case r.active:
		return r.c.misuse("start "+r.sig.callName, "the request is active; call Wait, or Test until it reports true, first")
	}
	if r.work != nil {
		if err := r.work.start(ctx); err != nil {
			return err
		}
	} else {
		r.msg = r.post()
	}
	r.active = true
	return nil
}

// Free gives up an inactive persistent request (MPI_Request_free); while it is active that is
// fault.Misuse. It is local. For requests that are not persistent, and for freed ones, it does
// nothing. The goroutine of a persistent collective ends.
func (r *Request) Free() error {
	switch {
	case !r.persistent || r.freed:
		return nil
	case r.active:
		return r.c.misuse("free "+r.sig.callName, "the request is active; call Wait first")
	}
	r.freed = true
	if r.work != nil {
		close(r.work.closing)
	}
	return nil
}

// Wait returns when the request is done, with the message's status; at once, and for a
// persistent request without an error, when it is inactive. When ctx ends first, a message
// that has met nothing is withdrawn, and a collective's communicator is revoked on every
// rank, as for a blocking call.
func (r *Request) Wait(ctx context.Context) (Status, error) {
	if err := checkContext("wait", ctx); err != nil {
		return Status{}, err
	}
	switch {
	case !r.active:
		r.refused = false
		return r.status, r.err
	case r.work != nil:
		r.work.wait(ctx)
		return r.complete(Status{}, r.work.err)
	}
	cl := r.call(ctx)
	st, err := r.msg.Wait(ctx, cl)
	return r.complete(Status(st), r.c.endMessage(cl, err))
}

// complete makes r inactive, and returns what its start came to. A request that is not
// persistent keeps the result for later calls; a persistent one reports it once, and is ready
// for the next start.
func (r *Request) complete(st Status, err error) (Status, error) {
	r.active = false
	if !r.persistent {
		r.status, r.err = st, err
	}
	return st, err
}

// call lists the wait for a message as a call of its own, so that errors of other ranks name
// it. The message itself is not listed: between ISend and Wait the program is elsewhere.
func (r *Request) call(ctx context.Context) *call {
	cl := newCall(r.c)
	cl.signature = r.sig
	cl.callName = "wait for " + r.sig.callName
	cl.site.Capture()
	_, cl.hasLimit = ctx.Deadline()
	r.c.rt.calls.beginMessage(cl)
	return cl
}

// Test reports whether the request is done, as Wait would, and also that it is inactive
// (MPI_Test). It does not wait, but moves the links that the message may come or go on, so a
// loop of Tests makes progress.
func (r *Request) Test() (st Status, done bool, err error) {
	switch {
	case !r.active:
		r.refused = false
		return r.status, true, r.err
	case r.work != nil:
		if !r.work.poll() {
			return Status{}, false, nil
		}
		st, err = r.complete(Status{}, r.work.err)
		return st, true, err
	}
	s, done, err := r.msg.Test()
	if !done {
		return Status{}, false, nil
	}
	if err != nil {
		err = r.c.withOp(r.sig.String(), err)
	}
	st, err = r.complete(Status(s), err)
	return st, true, err
}

// isDone reports whether Wait would return at once, without moving anything.
func (r *Request) isDone() bool {
	switch {
	case !r.active:
		return true
	case r.work != nil:
		return r.work.isDone()
	}
	return r.msg.Ready()
}

// watch registers w, which is woken when the request is done; nil ends that.
func (r *Request) watch(w *mesh.Waiter) {
	if r.work == nil {
		r.msg.Watch(w)
		return
	}
	r.work.mu.Lock()
	r.work.waiter = w
	r.work.mu.Unlock()
}

// checkRequests refuses what cannot be waited for, before anything is.
func checkRequests(op string, rs []*Request) error {
	for i, r := range rs {
		if r == nil {
			return fault.New(fault.Misuse, op, -1, "request %d of %d: got nil, want a request; leave out what was never started", i, len(rs))
		}
	}
	return nil
}

// checkWait is checkRequests with the context of a wait.
func checkWait(op string, ctx context.Context, rs []*Request) error {
	if err := checkContext(op, ctx); err != nil {
		return err
	}
	return checkRequests(op, rs)
}

func checkContext(op string, ctx context.Context) error {
	if ctx == nil {
		return fault.New(fault.Misuse, op, -1, "context: got nil, want one; context.Background() waits without a limit")
	}
	return nil
}

// StartAll starts persistent requests in their order (MPI_Startall). An error is that of the
// first one that was not started; those before it are active.
func StartAll(ctx context.Context, rs ...*Request) error {
	if err := checkWait("startall", ctx, rs); err != nil {
		return err
	}
	for _, r := range rs {
		if err := r.Start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// WaitAll returns when all requests are done, with the first error in their order
// (MPI_Waitall). It waits for all of them also after an error, so that their buffers are the
// caller's again. A nil request among them is fault.Misuse, before anything is waited for.
func WaitAll(ctx context.Context, rs ...*Request) error {
	if err := checkWait("waitall", ctx, rs); err != nil {
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

// TestAll reports whether all requests are done, and then the first error in their order
// (MPI_Testall). Unless all are done it makes none of them inactive. A nil request is
// fault.Misuse.
func TestAll(rs ...*Request) (done bool, err error) {
	if err := checkRequests("testall", rs); err != nil {
		return false, err
	}
	for _, r := range rs {
		if r.active && r.work == nil {
			r.msg.Test() // moves its message; p2p keeps the result
		}
		if !r.isDone() {
			return false, nil
		}
	}
	for _, r := range rs {
		if _, _, e := r.Test(); e != nil && err == nil {
			err = e
		}
	}
	return true, err
}

// WaitAny returns the index of an active request that is done, and its result (MPI_Waitany).
// Inactive requests are ignored, so a program may call it with the same list until the index
// is -1, which means that all are inactive. When ctx ends first, the index is -1 with an
// error, and all requests go on. A nil request among them is fault.Misuse.
func WaitAny(ctx context.Context, rs ...*Request) (int, Status, error) {
	if err := waitForOne(ctx, "waitany", rs); err != nil {
		return -1, Status{}, err
	}
	for i, r := range rs {
		if r.isOver() {
			st, err := r.Wait(ctx)
			return i, st, err
		}
	}
	return -1, Status{}, nil
}

// WaitSome waits as WaitAny does, and returns the indices of all active requests that are done
// by then, with their statuses and the first error in their order (MPI_Waitsome). It is
// cheaper than WaitAny where many requests end at about the same time.
func WaitSome(ctx context.Context, rs ...*Request) (done []int, sts []Status, err error) {
	if err := waitForOne(ctx, "waitsome", rs); err != nil {
		return nil, nil, err
	}
	for i, r := range rs {
		if !r.isOver() {
			continue
		}
		st, e := r.Wait(ctx)
		if err == nil {
			err = e
		}
		done, sts = append(done, i), append(sts, st)
	}
	return done, sts, err
}

// isOver reports whether WaitAny and WaitSome return r now: it is done, or it was refused and
// nobody knows that yet.
func (r *Request) isOver() bool { return r.refused || r.active && r.isDone() }

// waitForOne returns when an active request is done, and at once when none is active, or when
// one was refused, so that its error is not lost. All of
// them may be messages, collectives or both: one waiter is registered with each, and the links
// of the messages are polled meanwhile.
func waitForOne(ctx context.Context, op string, rs []*Request) error {
	if err := checkWait(op, ctx, rs); err != nil {
		return err
	}
	var active []*Request
	var links []*mesh.Link
	for _, r := range rs {
		if r.refused {
			return nil
		}
		if !r.active {
			continue
		}
		active = append(active, r)
		if r.msg != nil {
			links = append(links, r.msg.Links()...)
		}
	}
	if len(active) == 0 {
		return nil
	}
	c := active[0].c
	w := c.rt.mesh.NewWaiter()
	for _, r := range active {
		r.watch(w)
	}
	cl := active[0].call(ctx)
	err := c.rt.mesh.Wait(ctx, w, anyOf(active), cl, links...)
	for _, r := range active {
		r.watch(nil)
	}
	w.Free()
	return c.endMessage(cl, err)
}

// anyOf is the condition that one of some requests is done.
type anyOf []*Request

// Met implements mesh.Condition.
func (rs anyOf) Met() bool {
	for _, r := range rs {
		if r.isDone() {
			return true
		}
	}
	return false
}

// collectiveWork carries a non-blocking collective out, on a goroutine of its own: for one
// start, or, of a persistent one, start by start.
//
// The channels say who has the next step. A start is under way from start until wait or poll
// has received from finished:
//
//	started  finished  exited  the start
//	full     empty     open    waits for the worker
//	empty    empty     open    is carried out by the worker
//	empty    full      open    is over; its error is in err
//	full     empty     closed  was left behind by a worker that ended with the job: the owner carries it out, and it fails at once
//	empty    full      closed  is over
//
// Only the owner sends on started and receives from finished, so each channel has one slot and
// nobody blocks on it.
type collectiveWork struct {
	c      *Comm
	pl     plan
	cancel context.CancelCauseFunc // of a collective that is not persistent

	// The start under way. The owner of the request writes them before started, the worker
	// until finished.
	ctx   context.Context
	call  *call
	round *p2p.Round
	err   error

	started  chan struct{} // one slot: a start waits for the worker; nil unless persistent
	finished chan struct{} // one slot: the start is over
	closing  chan struct{} // closed by Free; nil unless persistent
	exited   chan struct{} // closed when the worker has ended; nil unless persistent

	mu     sync.Mutex // guards waiter
	waiter *mesh.Waiter
}

// finish ends a start.
func (w *collectiveWork) finish(err error) {
	w.err = err
	w.finished <- struct{}{}
	w.wake()
}

// wake wakes the goroutine that waits for one of several requests, if there is one.
func (w *collectiveWork) wake() {
	w.mu.Lock()
	if w.waiter != nil {
		w.waiter.Wake()
	}
	w.mu.Unlock()
}

// isDone reports whether wait would return at once. It is called often, by a goroutine that
// polls.
func (w *collectiveWork) isDone() bool {
	if len(w.finished) > 0 {
		return true
	}
	select {
	case <-w.exited: // never for one that is not persistent
		return true
	default:
		return false
	}
}

// poll is wait without waiting; false while the start is under way.
func (w *collectiveWork) poll() bool {
	select {
	case <-w.finished:
		return true
	case <-w.exited:
		w.runAbandoned()
		return true
	default:
		return false
	}
}

// wait returns when the start is over. When ctx ends first, it ends the operation on all ranks
// by revoking the communicator, and then returns soon.
func (w *collectiveWork) wait(ctx context.Context) {
	if w.poll() { // a collective that is over is not revoked, even if ctx has ended too
		return
	}
	select {
	case <-w.finished:
		return
	case <-w.exited:
		w.runAbandoned()
		return
	case <-ctx.Done():
		if w.poll() {
			return
		}
	}
	if w.cancel != nil {
		w.cancel(ctx.Err())
	} else {
		w.c.group.RevokeCollectives(ctx.Err())
	}
	select {
	case <-w.finished:
	case <-w.exited:
		w.runAbandoned()
	}
}

// request starts a plan and returns at once, or prepares it if it is persistent. Plans of one
// communicator get their numbers in the order of their starts. A wrong plan gives a request
// that is over, with the error: a non-blocking call has no other way to report it.
func (c *Comm) request(pl *plan, opts []CallOption) *Request {
	bad := pl.bind(c, opts)
	r := &Request{c: c, persistent: pl.persistent}
	if bad == nil {
		pl.noShared = true
		bad = pl.prepare(c)
	}
	if bad != nil {
		r.sig.callName = pl.verb.String()
		r.reject(bad)
		return r
	}
	pl.describe(&r.sig)
	if pl.persistent {
		r.sig.callName = "persistent " + r.sig.callName
		c.newWorker(r, pl)
		return r
	}
	r.sig.callName = "i" + r.sig.callName
	if err := c.startOnce(r, pl); err != nil {
		r.reject(err)
	}
	return r
}

// reject makes err the result of a request that was not begun.
func (r *Request) reject(err error) {
	name := r.sig.callName
	if !r.persistent {
		name = "i" + r.sig.callName
	}
	if errors.Is(err, fault.Misuse) { // this call was refused, and no blocking one
		err = r.c.withOp(name, err)
	}
	r.err, r.refused = err, !r.persistent
	if r.persistent {
		r.bad = err
	}
}

// startOnce starts the work of a request that is not persistent, on a new goroutine with a new
// round: several such requests may be under way. The call is admitted here, on the caller's
// goroutine, so that starts are numbered in the order of the program.
func (c *Comm) startOnce(r *Request, pl *plan) error {
	ctx, cancel := context.WithCancelCause(c.rt.ctx)
	cl := newCall(c)
	if err := c.begin(ctx, pl, cl); err != nil {
		cl.free()
		cancel(nil)
		return err
	}
	c.exit()
	round := c.group.NewRound(cl.seq, cl.fingerprint, cl)
	round.SetHistoryHash(cl.historyHash)
	round.SetSegment(cl.segment)
	round.DisableShared()
	w := &collectiveWork{c: c, cancel: cancel, finished: make(chan struct{}, 1)}
	run := func(context.Context) {
		err := pl.run(ctx, c, round)
		round.End()
		if cause := context.Cause(ctx); err != nil && cause != nil {
			err = cause
		}
		err = c.finish(cl, err)
		cancel(nil)
		w.finish(err)
	}
	if !c.rt.spawn(run) {
		round.End()
		cancel(nil)
		return c.finish(cl, fault.New(fault.Closed, "", c.rt.rank, "this rank is closing"))
	}
	r.work, r.active = w, true
	return nil
}

// newWorker gives a persistent request its worker. It is local: it sends nothing. The counts
// are copied, because the caller may reuse them before a start.
func (c *Comm) newWorker(r *Request, pl *plan) {
	pl.counts, pl.sends = slices.Clone(pl.counts), slices.Clone(pl.sends)
	w := &collectiveWork{
		c: c, pl: *pl,
		started: make(chan struct{}, 1), finished: make(chan struct{}, 1), closing: make(chan struct{}), exited: make(chan struct{}),
	}
	if !c.rt.spawn(w.serve) {
		r.reject(fault.New(fault.Closed, r.sig.callName, c.rt.rank, "this rank has closed"))
		return
	}
	r.work = w
}

// start hands a start to the worker of a persistent request. It reuses the round of the last
// start, and so allocates nothing.
func (w *collectiveWork) start(ctx context.Context) error {
	c := w.c
	cl := newCall(c)
	if err := c.begin(ctx, &w.pl, cl); err != nil {
		cl.free()
		return err
	}
	c.exit()
	w.round = c.group.ReuseRound(w.round, cl.seq, cl.fingerprint, cl)
	w.round.DisableShared()
	w.round.SetHistoryHash(cl.historyHash)
	w.round.SetSegment(cl.segment)
	w.ctx, w.call = ctx, cl
	w.started <- struct{}{}
	return nil
}

// serve carries starts out, one after the other.
func (w *collectiveWork) serve(ctx context.Context) {
	defer w.wake()
	defer close(w.exited)
	for {
		select {
		case <-w.started:
			w.run()
		case <-w.closing:
			return
		case <-ctx.Done(): // the job is closed: a start from now on fails, also if its owner carries it out
			return
		}
	}
}

// run carries one start out. The round is kept for the next one.
func (w *collectiveWork) run() {
	err := w.pl.run(w.ctx, w.c, w.round)
	w.round.Clear()
	w.finish(w.c.finish(w.call, err))
}

// runAbandoned ends a start that was made while the job closed, and that the worker may
// have left behind: it fails at once.
func (w *collectiveWork) runAbandoned() {
	select {
	case <-w.started:
		w.run()
	default:
	}
	<-w.finished
}
