package memory

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/tutti-go/tutti/fault"
)

// cacheLine is the alignment of shared memory. It lets ranks place their flags on separate cache
// lines.
const cacheLine = 64

// A shareGroup is the state of one Share. The Hub's mu guards it until done is closed. After that
// nothing in it changes.
type shareGroup struct {
	ranks, size int
	present     map[*Transport]bool // the ranks that wait
	done        chan struct{}       // closed when all ranks have come, or err is set
	err         error
	mem         []byte
}

// Share implements transport.Sharer with memory of the Go heap that starts on a cache line. If the
// callers pass different numbers of ranks or different sizes, all of them get fault.Mismatch. The
// name may be used again once all ranks have called Share. The returned function only checks that
// it is called once. The garbage collector frees the memory when no rank uses it any more.
func (t *Transport) Share(ctx context.Context, name string, ranks, size int) ([]byte, func() error, error) {
	op := "share " + name
	if ranks < 1 || size < 0 {
		return nil, nil, failure(fault.Misuse, op, fmt.Errorf("got %d ranks and %d bytes, want at least 1 and 0", ranks, size))
	}
	if err := ctxFailure(ctx, op); err != nil {
		return nil, nil, err
	}
	g, err := t.join(name, ranks, size)
	if err != nil {
		return nil, nil, err
	}
	select {
	case <-g.done:
	case <-ctx.Done():
		t.withdraw(name, g)
	case <-t.done:
		t.withdraw(name, g)
	}
	return t.shared(ctx, op, g)
}

// join adds t to the group with the given name. It completes the group when t is the last member,
// or when the arguments of t differ from those of the group. It removes a completed group from the
// Hub's table, so the next Share with that name makes a new group.
func (t *Transport) join(name string, ranks, size int) (*shareGroup, error) {
	h := t.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	g := h.shares[name]
	if g == nil {
		g = &shareGroup{ranks: ranks, size: size, present: make(map[*Transport]bool), done: make(chan struct{})}
		h.shares[name] = g
	}
	if g.present[t] {
		return nil, failure(fault.Misuse, "share "+name, errors.New("another Share of this name is still waiting on this rank: wait for it to return first"))
	}
	g.present[t] = true
	switch {
	case g.ranks != ranks || g.size != size:
		g.err = failure(fault.Mismatch, "share "+name, fmt.Errorf(
			"got %d bytes for %d ranks from one rank, and %d bytes for %d ranks from another", g.size, g.ranks, size, ranks))
	case len(g.present) < ranks:
		return g, nil
	default:
		g.mem = allocAligned(size)
	}
	delete(h.shares, name)
	close(g.done)
	return g, nil
}

// withdraw removes t from a group that t no longer waits for. If the group is already complete,
// withdraw does nothing, and t gets the memory or the mismatch like the other members. The last
// member to withdraw removes the group.
func (t *Transport) withdraw(name string, g *shareGroup) {
	h := t.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.shares[name] != g {
		return
	}
	delete(g.present, t)
	if len(g.present) == 0 {
		delete(h.shares, name)
	}
}

// shared returns the results of Share after the wait. If the group is complete, the rank gets the
// memory even if its context has ended, because the others have the memory.
func (t *Transport) shared(ctx context.Context, op string, g *shareGroup) ([]byte, func() error, error) {
	select {
	case <-g.done:
	default:
		if err := ctxFailure(ctx, op); err != nil {
			return nil, nil, err
		}
		return nil, nil, failure(fault.Closed, op, nil)
	}
	if g.err != nil {
		return nil, nil, g.err
	}
	var released atomic.Bool
	release := func() error {
		if !released.CompareAndSwap(false, true) {
			return failure(fault.Misuse, op, errors.New("got a second release, want one"))
		}
		return nil
	}
	return g.mem, release, nil
}

// allocAligned returns zeroed memory that starts on a cache line. Go aligns small allocations only
// to 8 bytes. So allocAligned allocates 63 more bytes, and skips the bytes before the first cache
// line.
func allocAligned(size int) []byte {
	b := make([]byte, size+cacheLine-1)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (cacheLine - 1)
	return b[skip : skip+size : skip+size]
}
