package coordinator

import (
	"context"
	"slices"
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
	co          *Coordinator
	submittedAt int64         // when it was submitted; for the timeline
	completedAt time.Duration // when it succeeded, since the coordinator began; written before its state

	state atomic.Uint32 // a handleState
	err   error         // of a failed one; written before its state
	turn  atomic.Uint64 // how often it was submitted again; changes with the mutex held

	// The coordinator's mutex guards these.
	call    string        // "allreduce w1 float32 [4] sum"; "" when nobody has asked
	done    chan struct{} // nil when nobody has asked
	waiters *waiter       // those in Wait
	crowd   *waiter       // one in WaitAll
	ticket  negotiate.SubmissionID

	// What was submitted does not change while it is under way.
	requests [1]negotiate.TensorRequest
	tickets  [1]negotiate.SubmissionID
	input    negotiate.Submit // of these two
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
	inFlight handleState = iota
	succeeded
	awaited // and a Wait has said so: it can be used again
	failed
)

// complete ends a submission. co.mu is held, or nobody knows the handle yet.
func (h *Handle) complete(err error) {
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
		w.handleDone(h.co)
	}
	h.waiters = nil
	if w := h.crowd; w != nil {
		h.crowd = nil
		w.handleDone(h.co)
	}
}

// A waiter is a goroutine in Wait, or WaitAll. Its channel gets one token, for which
// it has room, when the turns of all submissions that it waits for are over. Unlike
// one that is closed it can be used again, so that a Wait allocates nothing.
type waiter struct {
	woken     chan struct{}
	next      *waiter
	remaining int      // submissions that it waits for
	turns     []uint64 // WaitAll: those of all handles
}

// handleDone counts a submission; co.mu is held.
func (w *waiter) handleDone(co *Coordinator) {
	if w.remaining--; w.remaining == 0 {
		co.waiting.Add(-1)
		w.woken <- struct{}{}
	}
}

// maxIdle bounds the waiters that are kept for reuse, and maxTurns for how many handles
// each of them keeps room: 2 MiB together.
const maxIdle, maxTurns = 64, 4096

// newWaiter is a waiter for nothing yet. co.mu is held.
func (co *Coordinator) newWaiter() *waiter {
	if n := len(co.idleWaiters); n > 0 {
		w := co.idleWaiters[n-1]
		co.idleWaiters = co.idleWaiters[:n-1]
		return w
	}
	return &waiter{woken: make(chan struct{}, 1)}
}

// releaseWaiter ends a waiter that nobody knows any more. co.mu is held.
func (co *Coordinator) releaseWaiter(w *waiter) {
	select { // it may have been over just now
	case <-w.woken:
	default:
		if w.remaining > 0 {
			co.waiting.Add(-1)
		}
	}
	w.next, w.remaining, w.turns = nil, 0, w.turns[:0]
	if cap(w.turns) > maxTurns {
		w.turns = nil
	}
	if len(co.idleWaiters) < maxIdle {
		co.idleWaiters = append(co.idleWaiters, w)
	}
}

// addWaiter adds a waiter for a turn of the submission; nil when it is over.
func (h *Handle) addWaiter(turn uint64) *waiter {
	co := h.co
	co.mu.Lock()
	defer co.mu.Unlock()
	if h.isOver(turn) {
		return nil
	}
	w := co.newWaiter()
	w.next, w.remaining, h.waiters = h.waiters, 1, w
	co.waiting.Add(1)
	return w
}

// isOver reports whether a turn of the submission is done. The coordinator's mutex is
// held.
func (h *Handle) isOver(turn uint64) bool { return h.turn.Load() != turn || h.state.Load() != inFlight }

// outcome is that of a turn which is over: nil where another goroutine has waited, and
// submitted the name again. The coordinator's mutex is held.
func (h *Handle) outcome(turn uint64) error {
	if h.turn.Load() != turn {
		return nil
	}
	err, _ := h.settled()
	return err
}

// detach ends a waiter, which has its token or gives up. co.mu is held.
func (h *Handle) detach(w *waiter) {
	for at := &h.waiters; *at != nil; at = &(*at).next {
		if *at == w {
			*at = w.next
			break
		}
	}
	h.co.releaseWaiter(w)
}

// sleep returns when w's wait is over, or with the error of ctx.
func (co *Coordinator) sleep(ctx context.Context, w *waiter) error {
	co.stepInline(negotiate.Flush{})
	co.help(ctx, w)
	select {
	case <-w.woken:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// describe is the submission in words. co.mu is held, or nobody knows the handle yet.
func (h *Handle) describe() string {
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
// begun it. Waiting has what this rank submitted sent to the leader at once. Without
// a context it is fault.Misuse, unless the submission is done.
func (h *Handle) Wait(ctx context.Context) error {
	turn := h.turn.Load()
	if err, done := h.settled(); done {
		return err
	}
	return h.wait(ctx, turn)
}

// wait is Wait for one turn of the submission.
func (h *Handle) wait(ctx context.Context, turn uint64) error {
	if ctx == nil {
		h.co.mu.Lock()
		defer h.co.mu.Unlock()
		return fault.New(fault.Misuse, "wait for "+h.describe(), h.co.worldRank(h.co.rank), noContext)
	}
	w := h.addWaiter(turn)
	if w != nil {
		if err := h.co.sleep(ctx, w); err != nil {
			return h.cancelWait(w, err)
		}
	}
	h.co.mu.Lock()
	defer h.co.mu.Unlock()
	if w != nil {
		h.detach(w)
	}
	return h.outcome(turn)
}

// cancelWait is what a Wait returns whose context has ended.
func (h *Handle) cancelWait(w *waiter, why error) error {
	h.co.mu.Lock()
	defer h.co.mu.Unlock()
	h.detach(w)
	return fault.New(fault.ContextKind(why), "wait for "+h.describe(), h.co.worldRank(h.co.rank), "it stays under way: %w", why)
}

// Done is closed when the submission is done.
func (h *Handle) Done() <-chan struct{} {
	h.co.mu.Lock()
	defer h.co.mu.Unlock()
	if h.done == nil {
		h.done = make(chan struct{})
		if h.state.Load() != inFlight {
			close(h.done)
		}
	}
	return h.done
}

// WaitAll waits for all handles, and returns the first error in their order. It
// sleeps once, however many there are. It waits for what they stand for when it is
// called, whatever other goroutines submit of the same names meanwhile. Without a
// context, or with a nil handle, it is fault.Misuse, before anything is waited for.
func WaitAll(ctx context.Context, hs ...*Handle) (first error) {
	if len(hs) == 0 {
		return nil
	}
	if err := waitable(ctx, hs); err != nil {
		return err
	}
	co := hs[0].co
	co.mu.Lock()
	w := co.newWaiter()
	if cap(w.turns) < len(hs) {
		w.turns = make([]uint64, 0, len(hs)) // no more: above maxTurns free would drop it
	}
	for _, h := range hs {
		w.turns = append(w.turns, h.turn.Load())
	}
	co.awaitAll(ctx, w, hs)
	for i, h := range hs {
		turn := w.turns[i]
		var err error
		if h.co == co && h.isOver(turn) {
			err = h.outcome(turn)
		} else {
			co.mu.Unlock()
			err = h.wait(ctx, turn)
			co.mu.Lock()
		}
		if first == nil {
			first = err
		}
	}
	co.releaseWaiter(w)
	co.mu.Unlock()
	return first
}

const noContext = "the context is nil; context.Background() waits without a limit"

// waitable refuses what cannot be waited for.
func waitable(ctx context.Context, hs []*Handle) error {
	if i := slices.Index(hs, nil); i >= 0 {
		return fault.New(fault.Misuse, "waitall", -1, "handle %d of %d is nil", i, len(hs))
	}
	if ctx == nil {
		return fault.New(fault.Misuse, "waitall", hs[0].co.worldRank(hs[0].co.rank), noContext)
	}
	return nil
}

// awaitAll returns when the turns of all handles are over that are this coordinator's
// and that no other WaitAll waits for, or ctx has ended. co.mu is held, but not while
// it sleeps.
func (co *Coordinator) awaitAll(ctx context.Context, w *waiter, hs []*Handle) {
	for i, h := range hs {
		if h.co == co && h.crowd == nil && !h.isOver(w.turns[i]) {
			h.crowd = w
			w.remaining++
		}
	}
	if w.remaining == 0 {
		return
	}
	co.waiting.Add(1)
	co.mu.Unlock()
	_ = co.sleep(ctx, w) // each handle's wait says so
	co.mu.Lock()
	if w.remaining > 0 {
		co.waiting.Add(-1)
		w.remaining = 0
	}
	for _, h := range hs {
		if h.co == co && h.crowd == w {
			h.crowd = nil
		}
	}
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
