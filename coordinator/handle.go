package coordinator

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator/negotiate"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/tensor"
)

// A Handle is a submission under way. Its buffers are the caller's again once it
// is done. Any number of goroutines may wait for it. When a Wait has returned nil,
// the next submission of its name may get the same Handle, which then stands for
// that one.
type Handle struct {
	co    *Coordinator
	born  int64         // when it was submitted; for the timeline
	ended time.Duration // when it succeeded, since the coordinator began; written before its state

	state atomic.Uint32 // a handleState
	err   error         // of a failed one; written before its state

	// The coordinator's mutex guards these.
	call    string        // "allreduce w1 float32 [4] sum"; "" when nobody has asked
	done    chan struct{} // nil when nobody has asked
	waiters *waiter       // those in Wait
	turn    uint64        // how often it was submitted
	ticket  negotiate.Ticket

	// What was submitted does not change while it is under way.
	requests [1]negotiate.Request
	tickets  [1]negotiate.Ticket
	whole    negotiate.Submit // of these two
	opts     []CallOption
	count    int    // elements of src
	sizes    [2]int // bytes of dst and of src

	dst, src     []byte
	op           comm.Op
	residual     []byte                 // allreduce: what was not sent before,
	residualType tensor.DType           // and of which elements it is
	splits       []int                  // alltoall: rows to each rank
	alloc        func(bytes int) []byte // makes a result whose size was not known
	counts       []int                  // rows from each rank, of such a result
	set          *ProcessSet            // it is of; addset's result
	last         int                    // join's
}

type handleState = uint32

const (
	underWay handleState = iota
	succeeded
	awaited // and a Wait has said so: it can be used again
	failed
)

// finish ends a submission. co.mu is held, or nobody knows the handle yet.
func (h *Handle) finish(err error) {
	h.dst, h.src, h.residual = nil, nil, nil // the program's; this coordinator remembers the handle for the name's next turn
	if err != nil {
		h.err = err
		h.state.Store(failed)
	} else {
		h.state.Store(succeeded)
	}
	if h.done != nil {
		close(h.done)
	}
	for w := h.waiters; w != nil; w = w.next {
		w.woken <- struct{}{}
	}
	h.waiters = nil
}

// A waiter is a goroutine in Wait. Its channel gets one token, for which it has
// room, when the submission's turn is over. Unlike one that is closed it can be
// used again, so that a Wait allocates nothing.
type waiter struct {
	woken chan struct{}
	next  *waiter
}

// maxIdle bounds the waiters that are kept for reuse.
const maxIdle = 64

// await adds a waiter for the submission's turn; nil when it is over.
func (h *Handle) await() (w *waiter, turn uint64) {
	co := h.co
	co.mu.Lock()
	defer co.mu.Unlock()
	if h.state.Load() != underWay {
		return nil, h.turn
	}
	if n := len(co.idle); n > 0 {
		w, co.idle = co.idle[n-1], co.idle[:n-1]
	} else {
		w = &waiter{woken: make(chan struct{}, 1)}
	}
	w.next, h.waiters = h.waiters, w
	return w, h.turn
}

// part ends a waiter, which has its token or gives up. co.mu is held.
func (h *Handle) part(w *waiter) {
	for at := &h.waiters; *at != nil; at = &(*at).next {
		if *at == w {
			*at = w.next
			break
		}
	}
	select { // the turn may have ended just now
	case <-w.woken:
	default:
	}
	w.next = nil
	if co := h.co; len(co.idle) < maxIdle {
		co.idle = append(co.idle, w)
	}
}

// what is the submission in words. co.mu is held, or nobody knows the handle yet.
func (h *Handle) what() string {
	if h.call == "" {
		h.call = h.requests[0].Call()
	}
	return h.call
}

// settled is the outcome of a submission that is done.
func (h *Handle) settled() (err error, done bool) {
	switch h.state.Load() {
	case succeeded:
		h.state.CompareAndSwap(succeeded, awaited)
		return nil, true
	case awaited:
		return nil, true
	case failed:
		return h.err, true
	}
	return nil, false
}

// Wait returns when the submission is done, with its error. When ctx ends first,
// the submission stays under way and its buffers in use: other ranks may have
// begun it. Waiting has what this rank submitted sent to the leader at once.
func (h *Handle) Wait(ctx context.Context) error {
	if err, done := h.settled(); done {
		return err
	}
	h.co.flush()
	w, turn := h.await()
	if w != nil {
		select {
		case <-w.woken:
		case <-ctx.Done():
			return h.leave(w, ctx.Err())
		}
	}
	h.co.mu.Lock()
	defer h.co.mu.Unlock()
	if w != nil {
		h.part(w)
	}
	if h.turn != turn { // another goroutine has waited, and submitted the name again
		return nil
	}
	err, _ := h.settled()
	return err
}

// leave is what a Wait returns whose context has ended.
func (h *Handle) leave(w *waiter, why error) error {
	kind := fault.Canceled
	if errors.Is(why, context.DeadlineExceeded) {
		kind = fault.Timeout
	}
	h.co.mu.Lock()
	defer h.co.mu.Unlock()
	h.part(w)
	return fault.New(kind, "wait for "+h.what(), h.co.world(h.co.rank), "it stays under way: %w", why)
}

// Done is closed when the submission is done.
func (h *Handle) Done() <-chan struct{} {
	h.co.mu.Lock()
	defer h.co.mu.Unlock()
	if h.done == nil {
		h.done = make(chan struct{})
		if h.state.Load() != underWay {
			close(h.done)
		}
	}
	return h.done
}

// WaitAll waits for all handles, and returns the first error in their order.
func WaitAll(ctx context.Context, hs ...*Handle) error {
	var first error
	for _, h := range hs {
		if err := h.Wait(ctx); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// An Output is a submission whose result's size is known only when it is done.
type Output[T comm.Element] struct {
	*Handle
	values *[]T
}

// Result waits, and returns the result, which is the caller's, and how many rows
// each rank of the process set gave. Ranks that have joined gave none.
func (o *Output[T]) Result(ctx context.Context) (values []T, rows []int, err error) {
	if err := o.Wait(ctx); err != nil {
		return nil, nil, err
	}
	return *o.values, o.counts, nil
}
