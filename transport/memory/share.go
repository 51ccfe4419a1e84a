package memory

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/tutti-go/tutti/fault"
)

// cacheLine is the alignment of shared memory, so that ranks can place their flags on lines of
// their own.
const cacheLine = 64

// A shareGroup is a Share for which some ranks have not come yet. The Hub's mu guards it until
// done is closed; after that nothing changes.
type shareGroup struct {
	ranks, size int
	present     map[*Transport]bool // the ranks that wait
	done        chan struct{}       // closed when all have come, or err is set
	err         error
	mem         []byte
}

// Share implements transport.Sharer with memory of the Go heap that starts on a cache line. Callers
// that disagree about ranks or size all get fault.Mismatch. The name may be used again once all
// have come. release only checks that it is called once: the garbage collector frees the memory
// when no rank uses it any more.
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

// join joins the group of that name, and completes it when t is the last member, or when t asks for
// something else than the group. A completed group is no longer in the Hub's table, so that
// the next Share of that name makes a new one.
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

// withdraw removes t from a group, because its wait has ended, unless the group is complete
// meanwhile: then t has the memory, or the mismatch, like the others. The last one to withdraw
// removes the group.
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

// shared returns what Share returns to a rank that has waited. A group that is complete counts, also
// when the rank's context has ended meanwhile, because the others have the memory.
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

// allocAligned returns zeroed memory that starts on a cache line. The garbage collector aligns small
// pieces to 8 bytes only, so it allocates up to 63 bytes more and skips the first ones.
func allocAligned(size int) []byte {
	b := make([]byte, size+cacheLine-1)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (cacheLine - 1)
	return b[skip : skip+size : skip+size]
}
