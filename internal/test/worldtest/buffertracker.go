package worldtest

import (
	"bytes"
	"errors"
	"fmt"
	"sync"

	"github.com/tutti-go/tutti/tensor"
)

// A BufferTracker records which memory one rank has given to the library, and which callbacks it
// has registered. When a call has returned, the library must not write to its memory any more. Each
// callback must run once. Check reports violations. Any goroutine may call the methods.
type BufferTracker struct {
	mu        sync.Mutex // guards the fields below
	inUse     [][]byte
	returned  [][]byte
	callbacks []*callback
	cleanups  []func() error // the functions that Check runs last
	loans     map[*byte]bool // start addresses of library memory that calls have received
	reused    int            // number of repeated start addresses
}

// A callback records one callback of the library, which must run exactly once.
type callback struct {
	what string
	runs int
}

// track records memory that is about to be passed to a call.
func track[T tensor.Element](bt *BufferTracker, v []T) []T {
	bt.mu.Lock()
	defer bt.mu.Unlock()
	bt.inUse = append(bt.inUse, tensor.Bytes(v))
	return v
}

// trackUntilDone records memory that belongs to the library until the returned function is
// called.
func trackUntilDone[T tensor.Element](bt *BufferTracker, what string, v []T) (done func(error)) {
	bt.mu.Lock()
	defer bt.mu.Unlock()
	p := &callback{what: what}
	bt.callbacks = append(bt.callbacks, p)
	return func(error) {
		bt.mu.Lock()
		defer bt.mu.Unlock()
		p.runs++
		bt.markReturned(tensor.Bytes(v))
	}
}

// stamp is the byte with which returned memory is filled.
const stamp = 0xA5

// markReturned fills memory that the library has returned with a stamp, so that Check detects a
// later write. bt.mu is held.
func (bt *BufferTracker) markReturned(b []byte) {
	if len(b) > 0 {
		b[0] = stamp
		for n := 1; n < len(b); n *= 2 {
			copy(b[n:], b[:n])
		}
	}
	bt.returned = append(bt.returned, b)
}

// noteLoan records library memory that a call has received, before the call returns the memory. The
// tracker keeps a reference to all such memory. If an address occurs twice, the library has
// therefore reused the same memory.
func (bt *BufferTracker) noteLoan(b []byte) {
	if len(b) == 0 {
		return
	}
	bt.mu.Lock()
	defer bt.mu.Unlock()
	if bt.loans == nil {
		bt.loans = make(map[*byte]bool)
	}
	if bt.loans[&b[0]] {
		bt.reused++
	}
	bt.loans[&b[0]] = true
}

// Reused returns how often a call has received library memory that was returned before. Such memory
// is the prepared buffer of a tensor (comm.Parameters.StaticTensors).
func (bt *BufferTracker) Reused() int {
	bt.mu.Lock()
	defer bt.mu.Unlock()
	return bt.reused
}

// Returned marks the memory of all calls as returned. From now on the library must not write to it.
func (bt *BufferTracker) Returned() {
	bt.mu.Lock()
	defer bt.mu.Unlock()
	for _, b := range bt.inUse {
		bt.markReturned(b)
	}
	bt.inUse = nil
}

// Check must be called at the end of the job. Its error names memory that was written to after its
// return, and callbacks that did not run, or ran twice.
func (bt *BufferTracker) Check() error {
	bt.mu.Lock()
	defer bt.mu.Unlock()
	var errs []error
	for _, b := range bt.returned {
		if n := len(b) - bytes.Count(b, []byte{stamp}); n != 0 {
			errs = append(errs, fmt.Errorf("%d of %d bytes were written to after the call had returned", n, len(b)))
		}
	}
	for _, p := range bt.callbacks {
		if p.runs != 1 {
			errs = append(errs, fmt.Errorf("the callback of %s ran %d times", p.what, p.runs))
		}
	}
	for _, do := range bt.cleanups {
		errs = append(errs, do())
	}
	return errors.Join(errs...)
}
