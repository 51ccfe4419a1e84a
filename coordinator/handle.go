package coordinator

import (
	"context"
	"errors"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/tensor"
)

// A Handle is a submission under way. Its buffers are the caller's again once it
// is done. Any number of goroutines may wait for it.
type Handle struct {
	co   *Coordinator
	call string // "allreduce w1 float32 [4] sum"
	done chan struct{}
	err  error
	born int64 // when it was submitted; for the timeline

	dst, src     []byte
	op           comm.Op
	residual     []byte                 // allreduce: what was not sent before,
	residualType tensor.DType           // and of which elements it is
	splits       []int                  // alltoall: rows to each rank
	alloc        func(bytes int) []byte // makes a result whose size was not known
	counts       []int                  // rows from each rank, of such a result
	set          *ProcessSet            // addset's result
	last         int                    // join's
}

func newHandle(co *Coordinator) *Handle { return &Handle{co: co, done: make(chan struct{})} }

func (h *Handle) finish(err error) {
	h.err = err
	close(h.done)
}

// Wait returns when the submission is done, with its error. When ctx ends first,
// the submission stays under way and its buffers in use: other ranks may have
// begun it. Waiting has what this rank submitted sent to the leader at once.
func (h *Handle) Wait(ctx context.Context) error {
	select {
	case <-h.done:
		return h.err
	default:
	}
	h.co.flush()
	select {
	case <-h.done:
		return h.err
	case <-ctx.Done():
		kind := fault.Canceled
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			kind = fault.Timeout
		}
		return fault.New(kind, "wait for "+h.call, h.co.world(h.co.rank), "it stays under way: %w", ctx.Err())
	}
}

// Done is closed when the submission is done.
func (h *Handle) Done() <-chan struct{} { return h.done }

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
