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
	call   string        // "allreduce w1 float32 [4] sum"; "" when nobody has asked
	done   chan struct{} // nil when nobody has asked
	turn   uint64        // how often it was submitted
	ticket negotiate.Ticket

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
	done, turn := h.channel()
	select {
	case <-done:
	case <-ctx.Done():
		kind := fault.Canceled
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			kind = fault.Timeout
		}
		h.co.mu.Lock()
		defer h.co.mu.Unlock()
		return fault.New(kind, "wait for "+h.what(), h.co.world(h.co.rank), "it stays under way: %w", ctx.Err())
	}
	h.co.mu.Lock()
	defer h.co.mu.Unlock()
	if h.turn != turn { // another goroutine has waited, and submitted the name again
		return nil
	}
	err, _ := h.settled()
	return err
}

// Done is closed when the submission is done.
func (h *Handle) Done() <-chan struct{} {
	done, _ := h.channel()
	return done
}

// channel is closed when the submission's turn is over.
func (h *Handle) channel() (done <-chan struct{}, turn uint64) {
	h.co.mu.Lock()
	defer h.co.mu.Unlock()
	if h.done == nil {
		h.done = make(chan struct{})
		if h.state.Load() != underWay {
			close(h.done)
		}
	}
	return h.done, h.turn
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
