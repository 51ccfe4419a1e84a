package ps

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/tutti-go/tutti/fault"
)

// A Handle is an operation in flight. Any number of goroutines may call Wait.
//
// The buffers of the operation belong to the client until a Wait has returned and the error, if
// there is one, is not due to the end of the context of Wait.
type Handle struct {
	cl *Client
	op string // "push w"

	mu      sync.Mutex
	pending int
	err     error // the first error of a part
	done    chan struct{}
	pushing *atomic.Int64 // counts the tensor's operations that change it; or nil
}

// newHandle returns a Handle that is done when its parts are.
func newHandle(cl *Client, op string, parts int) *Handle {
	return &Handle{cl: cl, op: op, pending: parts, done: make(chan struct{})}
}

// failed returns a Handle that is done, with an error.
func failed(err error) *Handle {
	h := &Handle{err: err, done: make(chan struct{})}
	close(h.done)
	return h
}

// more adds a part.
func (h *Handle) more() {
	h.mu.Lock()
	h.pending++
	h.mu.Unlock()
}

// partDone counts one part.
func (h *Handle) partDone(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil && h.err == nil {
		h.err = h.cl.n.withOp(h.op, err)
	}
	if h.pending--; h.pending == 0 {
		if h.pushing != nil {
			h.pushing.Add(-1)
		}
		close(h.done)
		h.cl.end()
	}
}

// Done returns a channel that is closed when the operation is done.
func (h *Handle) Done() <-chan struct{} { return h.done }

// Wait waits until the operation is done, and returns its error. If ctx ends first, or the
// communicator's Timeout if ctx has no deadline, the error is fault.Canceled or fault.Timeout. The
// operation then goes on, and the buffers stay in use until it is done.
func (h *Handle) Wait(ctx context.Context) error {
	select {
	case <-h.done:
	default:
		ctx, cancel := h.cl.n.waitContext(ctx)
		defer cancel()
		select {
		case <-h.done:
		case <-ctx.Done():
			return h.cl.n.waitError(h.op, ctx)
		}
	}
	return h.err
}

// WaitAll waits until all operations are done, and returns the first error in list order. If ctx
// ends first, it returns as Handle.Wait does.
func WaitAll(ctx context.Context, hs ...*Handle) error {
	var first error
	for i, h := range hs {
		if h == nil {
			return fault.New(fault.Misuse, "waitall", -1, "handle with index %d of %d: got nil, want a handle; omit it", i, len(hs))
		}
	}
	for _, h := range hs {
		if err := h.Wait(ctx); err != nil && first == nil {
			first = err
		}
	}
	return first
}
