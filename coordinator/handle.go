package coordinator

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator/negotiate"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/callsite"
	"github.com/tutti-go/tutti/tensor"
)

// A Handle is one operation on a named tensor, with its buffers, operator and options. Declare
// returns a handle that has not been submitted. AllReduce and the other one-shot functions return a
// handle that has been submitted. A handle is like a persistent request of MPI: it can be submitted
// again after each Wait, with the same buffers and without an allocation. Any number of goroutines
// may call Wait and Done.
//
//	state     Submit                      completion    Wait
//	idle      in flight                   -             returns the last outcome
//	in flight recorded as fault.Misuse    done, or      sleeps
//	                                      idle if a goroutine waits
//	done      recorded as fault.Misuse    -             idle, returns the outcome
//
// The buffers belong to the coordinator while the handle is in flight.
type Handle struct {
	co *Coordinator

	// The coordinator's mutex guards these fields.
	state handleState
	err   error // the outcome of the last submission
	// misuse is the error of a Submit that was not allowed. The next Wait returns it, unless err is
	// set.
	misuse error
	// done is nil until Done is called, because most programs wait without a channel.
	done chan struct{}
	// waiters lists the goroutines in Wait, linked by waiter.next.
	waiters *waiter
	// call describes the operation, such as "allreduce w1 float32 [4] sum". It is made when it is
	// first needed, mostly for errors.
	call string
	// site is the call site of the last Submit. requests[0].Site describes it in words. Most
	// programs submit a tensor at one place, so the description is made once.
	site callsite.Site
	// invalid is the reason why every submission of this handle fails. It is nil for a valid
	// handle.
	invalid error
	// A handle may be a parent, which is done when its parts are done. parts counts the parts in
	// flight. combine computes the result from the parts, once, in the first Wait. In a part,
	// parent is set.
	parent    *Handle
	parts     int
	combine   func() error
	combining sync.Once
	combined  error

	submittedAt int64 // when the handle was submitted, for the timeline
	// completedAt is when the handle last succeeded, as the time since the coordinator started.
	completedAt time.Duration

	// These fields do not change while the handle is in flight. The state machines read requests.
	requests    [1]negotiate.TensorRequest
	submissions [1]negotiate.SubmissionID
	// input is the Worker's input for the two fields above. It is passed by pointer, so that a
	// submission needs no allocation. In a parent it has the requests of the parts.
	input negotiate.Submit
	// A grouped handle was submitted in a group. It cannot be submitted again.
	grouped bool

	dst, src []byte
	op       comm.Op
	// residual has what the codec has not sent in earlier submissions: the difference between the
	// elements and the message. residualType is its element type.
	residual     []byte
	residualType tensor.DType
	splits       []int         // alltoall: the number of rows to each rank
	begin        func() Future // pushpull
	// result allocates the result of an operation whose size was not known before. counts has the
	// number of rows of each rank.
	result func(bytes int, counts []int) []byte
	// set is the process set of the operation, and the result of addset.
	set  *ProcessSet
	last int // the result of join
}

// A handleState is a row of Handle's table.
type handleState uint8

const (
	idle handleState = iota
	inFlight
	done
)

// Submit submits the tensor. The tensor must not be in flight, and a Wait must have returned the
// outcome of its last submission. Otherwise this rank refuses the call: the next Wait returns
// fault.Misuse, a submission in flight continues, and the other ranks get fault.Mismatch for their
// same call. A handle that was submitted in a group cannot be submitted again.
//
// Calls of Submit by several goroutines must not overlap. Otherwise this rank may report a refused
// call to rank 0 before the submission that continues, and the calls of the ranks no longer match:
// the other ranks get fault.Mismatch for the call that matches the submission, and the submission
// waits for their next call.
func (h *Handle) Submit() {
	var at callsite.Site
	at.Capture()
	h.submit(at)
}

// submit submits the tensor for a call of the program. The parameter at is the call site.
func (h *Handle) submit(at callsite.Site) {
	co := h.co
	now := co.timestamp()
	co.mu.Lock()
	var misuse *fault.Error
	switch {
	case h.grouped:
		misuse = h.misused("the tensor was submitted in a group; submit it in a new group")
	case h.state != idle:
		misuse = h.misused("Submit was called at %s before Wait had returned for the submission at %s; call Wait first", co.describeSite(at), h.requests[0].Site)
	default:
		h.restart()
		if at != h.site {
			h.site, h.requests[0].Site = at, co.describeSite(at)
		}
		if h.invalid != nil {
			co.mu.Unlock()
			co.refuse([]*Handle{h}, h.invalid)
			return
		}
		if co.closed {
			h.complete(co.closedError(h.describe()))
			break
		}
		h.submittedAt = now
		h.submissions[0] = co.handles.add(h)
		co.mu.Unlock()
		co.stepInline(&h.input)
		return
	}
	if misuse == nil {
		co.mu.Unlock()
		return
	}
	h.misuse = misuse
	in := negotiate.Refused{Call: h.describe(), Site: co.describeSite(at), Err: misuse.Err}
	for i := range h.input.Requests {
		q := &h.input.Requests[i]
		in.Tensors = append(in.Tensors, negotiate.TensorName{Set: q.Set, Name: q.Name})
	}
	co.mu.Unlock()
	co.stepInline(in)
}

// misused returns an error for a call in the wrong state. co.mu is held.
func (h *Handle) misused(format string, args ...any) *fault.Error {
	return fault.New(fault.Misuse, h.describe(), h.co.worldRank(h.co.rank), format, args...)
}

// restart puts an idle handle in flight. co.mu is held.
func (h *Handle) restart() { h.state, h.err, h.misuse, h.done = inFlight, nil, nil, nil }

// complete ends a submission. co.mu is held.
func (h *Handle) complete(err error) {
	h.err = err
	h.state = done
	if h.waiters != nil {
		h.state = idle
	}
	if h.done != nil {
		close(h.done)
	}
	for w := h.waiters; w != nil; w = w.next {
		w.finish(h.co, h.outcome())
	}
	h.waiters = nil
	if p := h.parent; p != nil {
		if p.err == nil {
			p.err = err
		}
		if p.parts--; p.parts == 0 {
			p.complete(p.err)
		}
	}
}

// outcome returns the error of the last submission or, if it has succeeded, the error of a misuse.
// co.mu is held.
func (h *Handle) outcome() error {
	if h.err == nil {
		return h.misuse
	}
	return h.err
}

// newParent returns a handle that is done when all its parts are done. The parts must not be in
// flight yet. The first Wait of the parent calls combine.
func newParent(call string, combine func() error, parts ...*Handle) *Handle {
	p := &Handle{co: parts[0].co, call: call, state: inFlight, parts: len(parts), combine: combine, grouped: true}
	for _, h := range parts {
		h.parent = p
		p.input.Requests = append(p.input.Requests, h.requests[0])
	}
	return p
}

// describe describes the operation in words. The caller holds co.mu, unless no other goroutine has
// the handle.
func (h *Handle) describe() string {
	if h.call == "" {
		h.call = h.requests[0].Call()
	}
	return h.call
}

// Wait waits until the submission is done, and returns its error. If ctx ends first, the submission
// stays in flight and its buffers stay in use, because other ranks may have begun it. Wait also
// makes this rank send its collected submissions to rank 0 at once. A nil ctx is fault.Misuse.
func (h *Handle) Wait(ctx context.Context) error {
	err := h.wait(ctx)
	if err == nil && h.combine != nil {
		h.combining.Do(func() { h.combined = h.combine() })
		err = h.combined
	}
	return err
}

// wait is like Wait, but does not call combine. If the goroutine has to sleep, it takes the outcome
// from its waiter and not from the handle, because another goroutine may already have submitted the
// handle again.
func (h *Handle) wait(ctx context.Context) error {
	co := h.co
	co.mu.Lock()
	if ctx == nil {
		defer co.mu.Unlock()
		return fault.New(fault.Misuse, "wait for "+h.describe(), co.worldRank(co.rank), noContext)
	}
	if h.state != inFlight {
		defer co.mu.Unlock()
		h.state = idle
		return h.outcome()
	}
	w := co.newWaiter()
	w.next, h.waiters = h.waiters, w
	co.progress.addWaiters(1)
	co.mu.Unlock()
	ended := co.sleep(ctx, w)
	co.mu.Lock()
	defer co.mu.Unlock()
	defer co.releaseWaiter(w)
	if ended == nil || w.finished {
		return w.err
	}
	h.detach(w)
	return fault.New(fault.ContextKind(ended), "wait for "+h.describe(), co.worldRank(co.rank), "the submission stays in flight: %w", ended)
}

const noContext = "the context is nil; context.Background() waits without a limit"

// detach removes the waiter of a goroutine that stops waiting. co.mu is held.
func (h *Handle) detach(w *waiter) {
	for at := &h.waiters; *at != nil; at = &(*at).next {
		if *at == w {
			*at = w.next
			break
		}
	}
	h.co.progress.addWaiters(-1)
}

// sleep returns when w is finished, or with the error of ctx.
func (co *Coordinator) sleep(ctx context.Context, w *waiter) error {
	co.stepInline(negotiate.Flush{})
	co.poll(ctx, w)
	select {
	case <-w.woken:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Done returns a channel that is closed when the submission is done. If nothing has been submitted,
// the channel is closed. Each submission has its own channel.
func (h *Handle) Done() <-chan struct{} {
	h.co.mu.Lock()
	defer h.co.mu.Unlock()
	if h.done == nil {
		h.done = make(chan struct{})
		if h.state != inFlight {
			close(h.done)
		}
	}
	return h.done
}

// WaitAll waits for all handles and returns the first error in the order of hs. If the context or a
// handle is nil, WaitAll returns fault.Misuse without waiting.
func WaitAll(ctx context.Context, hs ...*Handle) (first error) {
	if i := slices.Index(hs, nil); i >= 0 {
		return fault.New(fault.Misuse, "waitall", -1, "handle with index %d of %d: got nil, want a handle", i, len(hs))
	}
	if ctx == nil && len(hs) > 0 {
		return fault.New(fault.Misuse, "waitall", hs[0].co.worldRank(hs[0].co.rank), noContext)
	}
	// The last handle is mostly done last. This loop waits for it first, so the goroutine mostly
	// sleeps only once. Then it takes the outcomes of the handles that are done, under one lock.
	for len(hs) > 0 {
		last := hs[len(hs)-1]
		if err := last.Wait(ctx); err != nil {
			first = err
		}
		hs = hs[:len(hs)-1]
		last.co.mu.Lock()
		for len(hs) > 0 {
			h := hs[len(hs)-1]
			if h.co != last.co || h.state == inFlight || h.combine != nil {
				break // Wait handles these
			}
			h.state = idle
			if err := h.outcome(); err != nil {
				first = err
			}
			hs = hs[:len(hs)-1]
		}
		last.co.mu.Unlock()
	}
	return first
}

// A waiter represents a goroutine in Wait. The completion sends one token on the channel, which has
// room for it. The channel is never closed, so a waiter can be reused, and a Wait does not
// allocate. The coordinator's mutex guards all fields except the channel.
type waiter struct {
	woken    chan struct{}
	next     *waiter
	finished bool
	err      error // the outcome; the handle may already have the outcome of a later submission
}

// finish wakes the goroutine of a waiter with an outcome. co.mu is held.
func (w *waiter) finish(co *Coordinator, err error) {
	w.finished, w.err = true, err
	co.progress.addWaiters(-1)
	w.woken <- struct{}{}
}

// maxIdle bounds the number of waiters that are kept for reuse.
const maxIdle = 64

// newWaiter returns an unfinished waiter. co.mu is held.
func (co *Coordinator) newWaiter() *waiter {
	if n := len(co.idleWaiters); n > 0 {
		w := co.idleWaiters[n-1]
		co.idleWaiters = co.idleWaiters[:n-1]
		return w
	}
	return &waiter{woken: make(chan struct{}, 1)}
}

// releaseWaiter keeps a waiter for reuse. No handle may still refer to the waiter. co.mu is held.
func (co *Coordinator) releaseWaiter(w *waiter) {
	select { // drops a token that came when the context had ended
	case <-w.woken:
	default:
	}
	w.next, w.finished, w.err = nil, false, nil
	if len(co.idleWaiters) < maxIdle {
		co.idleWaiters = append(co.idleWaiters, w)
	}
}
