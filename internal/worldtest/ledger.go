package worldtest

import (
	"bytes"
	"errors"
	"fmt"
	"sync"

	"github.com/tutti-go/tutti/tensor"
)

// A Ledger notes what one rank has lent to the library and what it was promised
// in return: memory is the caller's again when the call has returned, and a
// callback runs once. Its methods may be called concurrently.
type Ledger struct {
	mu       sync.Mutex // guards the rest
	lent     [][]byte
	back     [][]byte
	promises []*promise
	last     []func() error // what Settle ends with
	borrowed map[*byte]bool // where memory of the library's began that a call has had
	reused   int            // how often one began there again
}

// A promise is a callback that has to run once.
type promise struct {
	what string
	runs int
}

// lend notes memory that a call is about to be given.
func lend[T tensor.Element](l *Ledger, v []T) []T {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lent = append(l.lent, tensor.Bytes(v))
	return v
}

// lendUntil notes memory that is given until the function returned is called.
func lendUntil[T tensor.Element](l *Ledger, what string, v []T) (done func(error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := &promise{what: what}
	l.promises = append(l.promises, p)
	return func(error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		p.runs++
		l.take(tensor.Bytes(v))
	}
}

// stamp is what memory is filled with that has come back.
const stamp = 0xA5

// take marks memory as the caller's; l.mu is held.
func (l *Ledger) take(b []byte) {
	if len(b) > 0 {
		b[0] = stamp
		for n := 1; n < len(b); n *= 2 {
			copy(b[n:], b[:n])
		}
	}
	l.back = append(l.back, b)
}

// borrow notes the library's memory that a call has got, before it gives that back. All
// is kept from the collector, so that what lies at one address twice is the same piece,
// given back and used again.
func (l *Ledger) borrow(b []byte) {
	if len(b) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.borrowed == nil {
		l.borrowed = make(map[*byte]bool)
	}
	if l.borrowed[&b[0]] {
		l.reused++
	}
	l.borrowed[&b[0]] = true
}

// Reused is how often a call has got memory of the library's that it had given back
// before: a tensor's berth (comm.WithTensorRegion).
func (l *Ledger) Reused() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reused
}

// Returned says that the rank's calls have returned: from now on nothing of what
// they were lent may be written to.
func (l *Ledger) Returned() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.lent {
		l.take(b)
	}
	l.lent = nil
}

// Settle is called at the end of the job. Its error names memory that was written
// to after its return, and callbacks that did not run, or twice.
func (l *Ledger) Settle() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, b := range l.back {
		if n := len(b) - bytes.Count(b, []byte{stamp}); n != 0 {
			errs = append(errs, fmt.Errorf("%d of %d bytes were written to after the call had returned", n, len(b)))
		}
	}
	for _, p := range l.promises {
		if p.runs != 1 {
			errs = append(errs, fmt.Errorf("the callback of %s ran %d times", p.what, p.runs))
		}
	}
	for _, do := range l.last {
		errs = append(errs, do())
	}
	return errors.Join(errs...)
}
