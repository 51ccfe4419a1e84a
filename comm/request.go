package comm

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/tensor"
)

// A Request is a non-blocking message or collective. ISend, IRecv and the collectives whose names
// begin with I return a Request.
//
//	r := comm.IAllReduce(c, grads, comm.Sum)
//	... // compute what does not need the sum
//	_, err := r.Wait(ctx)
//
// The request's buffers belong to the library while the request is active. A request makes progress
// without calls of the program: a goroutine carries out a collective, and the mesh moves a message.
//
//	state      entered by                        left by
//	inactive   Persistent; Wait, Test and the    Start
//	           like, once they report its end
//	active     ISend, IRecv, IAllReduce, ...;    Wait or Test that reports its end
//	           Start
//	freed      Free of an inactive request
//
// A request that is not persistent starts active, and is over once it is inactive. A persistent
// request (MPI-4's persistent communication) starts inactive, and can be started any number of
// times. Every start uses the same buffers and arguments; the program may change the contents of
// the buffers between two starts. A start counts as a collective call: all ranks must make the
// starts and their other collectives on the communicator in the same order. A start matches the
// blocking and the non-blocking form of the same collective, provided that the blocking form uses
// messages. Starting a persistent collective allocates nothing.
//
// Only one goroutine at a time may use a Request. The program must call Wait, or Test until it
// reports true; otherwise the memory of the request is not reclaimed. A persistent collective
// occupies a goroutine until Free, or until the job is closed.
//
// A request does not begin if its arguments are wrong or another goroutine is inside a collective.
// Wait and Test report that error; for a persistent request, Start reports it. The error does not
// affect other ranks.
type Request struct {
	c      *Comm
	sig    signature
	msg    *p2p.MessageRequest // the message of the last start; nil for a collective
	work   *collectiveWork     // nil for a message
	post   func() *p2p.MessageRequest
	bad    error // the reason why a persistent request could not be prepared
	err    error // the error of the last start
	status Status

	persistent, active, freed bool

	refused bool // the request was not begun; Wait and Test have not reported the reason, err, yet
}

// ISend begins to send buf to another rank, and never blocks; see Send (MPI_Isend). The only option
// allowed is Persistent (MPI_Send_init). The request is done when Send would return: the message
// need not have been received.
func ISend[T Element](c *Comm, to, tag int, buf []T, opts ...CallOption) *Request {
	sig := signature{callName: "isend", dtype: tensor.TypeOf[T](), count: len(buf), root: -1, peer: c.jobRank(to), tag: tag}
	r := &Request{c: c, sig: sig}
	if r.allowPersistent(opts); r.persistent {
		r.sendLater(to, tag, tensor.Bytes(buf))
	} else if r.bad == nil {
		r.msg, r.active = c.group.Isend(to, tag, fingerprintOf(sig.dtype), tensor.Bytes(buf)), true
	}
	return r
}

// IRecv begins to receive into buf, and never blocks; see Recv (MPI_Irecv). The only option allowed
// is Persistent (MPI_Recv_init). Wait returns the status of the message.
func IRecv[T Element](c *Comm, from, tag int, buf []T, opts ...CallOption) *Request {
	sig := signature{callName: "irecv", dtype: tensor.TypeOf[T](), count: len(buf), root: -1, peer: c.sourceRank(from), tag: tag}
	r := &Request{c: c, sig: sig}
	if r.allowPersistent(opts); r.persistent {
		r.recvLater(from, tag, tensor.Bytes(buf))
	} else if r.bad == nil {
		r.msg, r.active = c.group.Irecv(from, tag, fingerprintOf(sig.dtype), tensor.Bytes(buf)), true
	}
	return r
}

// sendLater prepares a persistent send. It is a separate function so that an ISend that is not
// persistent allocates no closure.
func (r *Request) sendLater(to, tag int, b []byte) {
	r.post = func() *p2p.MessageRequest { return r.c.group.Isend(to, tag, fingerprintOf(r.sig.dtype), b) }
}

// recvLater prepares a persistent receive; see sendLater.
func (r *Request) recvLater(from, tag int, b []byte) {
	r.post = func() *p2p.MessageRequest { return r.c.group.Irecv(from, tag, fingerprintOf(r.sig.dtype), b) }
}

// allowPersistent reads the options of a message call. Only Persistent is allowed. For any other
// option it stores an error, which Start, Wait and Test return.
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

// Start starts a persistent request and returns at once. For a collective, ctx bounds the
// operation, as in a blocking call: when ctx ends, the communicator is revoked on every rank. For a
// message, ctx has no effect, and only the context of Wait bounds the wait. An error means that the
// request was not started. It is fault.Misuse if the request is active, freed or not persistent, if
// its arguments are wrong, or if another goroutine is inside a collective. Otherwise the error says
// why the communicator takes no more calls.
func (r *Request) Start(ctx context.Context) error {
	if err := checkContext("start", ctx); err != nil {
		return err
	}
	switch {
	case r.bad != nil:
		return r.bad
	case !r.persistent:
		return r.c.misuse("start "+r.sig.callName, "request: got one that is not persistent, want a persistent one; pass the option Persistent to the call that makes it")
	case r.freed:
		return r.c.misuse("start "+r.sig.callName, "request: got a freed one, want one that is not freed")
	case r.active:
		return r.c.misuse("start "+r.sig.callName, "request: got an active one, want an inactive one; first call Wait, or Test until it reports true")
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

// Free releases an inactive persistent request and ends its goroutine (MPI_Request_free). It is
// local. For an active request it returns fault.Misuse. For a request that is freed already or is
// not persistent, it does nothing.
func (r *Request) Free() error {
	switch {
	case !r.persistent || r.freed:
		return nil
	case r.active:
		return r.c.misuse("free "+r.sig.callName, "request: got an active one, want an inactive one; first call Wait, or Test until it reports true")
	}
	r.freed = true
	if r.work != nil {
		close(r.work.closing)
	}
	return nil
}

// Wait waits until the request is done and returns the message's status. For an inactive request it
// returns at once. An inactive persistent request gives no error, unless it could not be prepared.
// If ctx ends first, Wait withdraws a message that has not been matched. For a collective it
// revokes the communicator on every rank, as a blocking call does.
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

// complete makes r inactive and returns the result. A request that is not persistent stores the
// result for later calls of Wait and Test. A persistent request does not store it, because the next
// start may follow at once.
func (r *Request) complete(st Status, err error) (Status, error) {
	r.active = false
	if !r.persistent {
		r.status, r.err = st, err
	}
	return st, err
}

// call lists the wait for a message as a separate call, so that errors of other ranks name it. The
// message itself is not listed, because between ISend and Wait the program is elsewhere.
func (r *Request) call(ctx context.Context) *call {
	cl := newCall(r.c)
	cl.signature = r.sig
	cl.callName = "wait for " + r.sig.callName
	cl.site.Capture()
	_, cl.hasLimit = ctx.Deadline()
	r.c.rt.calls.beginMessage(cl)
	return cl
}

// Test reports whether the request is done or inactive, without waiting (MPI_Test). If it is, Test
// returns what Wait would return. Test polls the links of the message, so a loop of Tests makes
// progress.
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
		err = r.c.messageError(r.sig.String(), err)
	}
	st, err = r.complete(Status(s), err)
	return st, true, err
}

// isDone reports whether Wait would return at once. It polls no link.
func (r *Request) isDone() bool {
	switch {
	case !r.active:
		return true
	case r.work != nil:
		return r.work.isDone()
	}
	return r.msg.Ready()
}

// watch registers w, which the request wakes when it is done. A nil w ends the registration.
func (r *Request) watch(w *p2p.Waiter) {
	if r.work == nil {
		r.msg.Watch(w)
		return
	}
	r.work.mu.Lock()
	r.work.waiter = w
	r.work.mu.Unlock()
}

// checkRequests refuses a nil request. Callers check all requests before they wait for any.
func checkRequests(op string, rs []*Request) error {
	for i, r := range rs {
		if r == nil {
			return fault.New(fault.Misuse, op, -1, "request with index %d of %d: got nil, want a request; omit it", i, len(rs))
		}
	}
	return nil
}

// checkWait refuses a nil context or a nil request.
func checkWait(op string, ctx context.Context, rs []*Request) error {
	if err := checkContext(op, ctx); err != nil {
		return err
	}
	return checkRequests(op, rs)
}

// checkContext refuses a nil context.
func checkContext(op string, ctx context.Context) error {
	if ctx == nil {
		return fault.New(fault.Misuse, op, -1, "context: got nil, want one; context.Background() waits without a limit")
	}
	return nil
}

// StartAll starts persistent requests in order (MPI_Startall). It stops at the first request that
// fails to start and returns its error; the requests before it stay active.
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

// WaitAll waits until all requests are done, and returns the first error in list order
// (MPI_Waitall). It waits for all requests even after an error, so that the caller may use their
// buffers again. For a nil request it returns fault.Misuse and waits for none.
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

// TestAll reports whether all requests are done (MPI_Testall). If they are, it makes them inactive
// and returns the first error in list order; otherwise it makes none of them inactive. A nil
// request gives fault.Misuse.
func TestAll(rs ...*Request) (done bool, err error) {
	if err := checkRequests("testall", rs); err != nil {
		return false, err
	}
	for _, r := range rs {
		if r.active && r.work == nil {
			r.msg.Test() // polls the links of the message; p2p keeps the result
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

// WaitAny returns the index of an active request that is done, and its result (MPI_Waitany). It
// ignores inactive requests. A program may therefore call WaitAny with the same list until the
// index is -1, which means that all requests are inactive. If ctx ends first, the index is -1 with
// an error, and all requests go on. A nil request in the list is fault.Misuse.
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

// WaitSome waits until an active request is done (MPI_Waitsome). It returns the indices and the
// statuses of all active requests that are done by then, and the first error in list order. It is
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

// isOver reports whether WaitAny and WaitSome may return r now. They may if r is done, or if r was
// refused and the program has not received its error yet.
func (r *Request) isOver() bool { return r.refused || r.active && r.isDone() }

// waitForOne waits until an active request is done. It returns at once if no request is active, or
// if a request was refused, so that the error of that request is not lost. The requests may be
// messages and collectives: waitForOne registers one waiter with all of them, and polls the links
// of the messages while it waits.
func waitForOne(ctx context.Context, op string, rs []*Request) error {
	if err := checkWait(op, ctx, rs); err != nil {
		return err
	}
	var active []*Request
	var messages []*p2p.MessageRequest
	for _, r := range rs {
		if r.refused {
			return nil
		}
		if !r.active {
			continue
		}
		active = append(active, r)
		if r.msg != nil {
			messages = append(messages, r.msg)
		}
	}
	if len(active) == 0 {
		return nil
	}
	c := active[0].c
	w := c.group.NewWaiter()
	for _, r := range active {
		r.watch(w)
	}
	cl := active[0].call(ctx)
	err := c.group.Wait(ctx, w, anyOf(active), cl, messages...)
	for _, r := range active {
		r.watch(nil)
	}
	w.Free()
	return c.endMessage(cl, err)
}

// anyOf is a condition that holds when at least one of its requests is done.
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

// collectiveWork carries out a non-blocking collective on its own goroutine, the worker. A
// persistent collective keeps its worker for all its starts.
// The state of the channels says which goroutine acts next. A start is under way until wait or poll
// has received from finished.
// has received from finished:
//
//	started  finished  exited  the start
//	full     empty     open    waits for the worker
//	empty    empty     open    is carried out by the worker
//	empty    full      open    is over; its error is in err
//	full     empty     closed  its worker ended with the job; the owner carries it out, and it fails
//	empty    full      closed  is over
//
// Only the owner sends on started and receives from finished, so each channel has one slot and no
// send blocks.
type collectiveWork struct {
	c      *Comm
	pl     plan
	cancel context.CancelCauseFunc // cancels a collective that is not persistent

	// The fields of the start under way. The owner of the request writes these fields before it
	// sends on started. The worker writes them until it sends on finished.
	ctx   context.Context
	call  *call
	round *p2p.Round
	err   error

	started  chan struct{} // one slot: a start waits for the worker; nil unless persistent
	finished chan struct{} // one slot: the start is over
	closing  chan struct{} // closed by Free; nil unless persistent
	exited   chan struct{} // closed when the worker has ended; nil unless persistent

	mu     sync.Mutex // guards waiter
	waiter *p2p.Waiter
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
	case <-w.exited: // never happens for a request that is not persistent
		return true
	default:
		return false
	}
}

// poll is the non-blocking form of wait. It returns false while the start is under way.
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

// wait waits until the start is over. If ctx ends first, wait revokes the communicator, which ends
// the operation on all ranks, and returns soon afterwards.
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

// request starts a plan and returns at once. If the plan is persistent, request only prepares it.
// Plans of one communicator are numbered in the order of their starts. A non-blocking call returns
// no error, so for wrong arguments request returns a finished request that holds the error.
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
	pl.describe(c, &r.sig)
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

// reject stores err as the result of a request that was not begun.
func (r *Request) reject(err error) {
	name := r.sig.callName
	if !r.persistent {
		name = "i" + r.sig.callName
	}
	if errors.Is(err, fault.Misuse) { // the error names this call, and not its blocking form
		err = r.c.withOp(name, err)
	}
	r.err, r.refused = err, !r.persistent
	if r.persistent {
		r.bad = err
	}
}

// startOnce starts the work of a request that is not persistent. Several such requests may be under
// way, so each has a new goroutine and a new round. startOnce admits the call on the caller's
// goroutine, so that starts are numbered in program order.
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

// newWorker starts the worker of a persistent request. It sends nothing. It copies the counts,
// because the caller may reuse their slices before a start.
func (c *Comm) newWorker(r *Request, pl *plan) {
	pl.counts, pl.sends = slices.Clone(pl.counts), slices.Clone(pl.sends)
	w := &collectiveWork{
		c: c, pl: *pl,
		started: make(chan struct{}, 1), finished: make(chan struct{}, 1), closing: make(chan struct{}), exited: make(chan struct{}),
	}
	if !c.rt.spawn(w.serve) {
		r.reject(fault.New(fault.Closed, r.sig.callName, c.rt.rank, "this rank has called Close"))
		return
	}
	r.work = w
}

// start hands the next start to the worker of a persistent request. It reuses the round of the last
// start, so it allocates nothing.
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

// serve is the worker's loop: it carries out one start after another until Free or the end of the
// job.
func (w *collectiveWork) serve(ctx context.Context) {
	defer w.wake()
	defer close(w.exited)
	for {
		select {
		case <-w.started:
			w.run()
		case <-w.closing:
			return
		// The job is closed, so the worker ends. A wait for a later start calls runAbandoned, which
		// ends the start with an error.
		case <-ctx.Done():
			return
		}
	}
}

// run carries out one start, and keeps the round for the next start.
func (w *collectiveWork) run() {
	err := w.pl.run(w.ctx, w.c, w.round)
	w.round.Clear()
	w.finish(w.c.finish(w.call, err))
}

// runAbandoned completes a start that was made while the job closed. If the worker ended before it
// took the start, runAbandoned runs the start itself, which fails at once. In both cases it then
// empties finished, as after every start.
func (w *collectiveWork) runAbandoned() {
	select {
	case <-w.started:
		w.run()
	default:
	}
	<-w.finished
}
