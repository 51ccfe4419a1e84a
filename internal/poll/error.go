package poll

import "sync/atomic"

// A FirstError keeps the first error of a Conn, which is the one that it reports
// for good. The zero FirstError has none; its methods may be called by anyone.
type FirstError struct{ p atomic.Pointer[error] }

// Set makes err the first error unless there is one, and returns the first.
func (e *FirstError) Set(err error) error {
	e.p.CompareAndSwap(nil, &err)
	return *e.p.Load()
}

// Get is nil while nothing has failed.
func (e *FirstError) Get() error {
	if p := e.p.Load(); p != nil {
		return *p
	}
	return nil
}
