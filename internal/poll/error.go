package poll

import "sync/atomic"

// A FirstError holds the first error of a Conn, which the Conn reports from then on. The zero
// FirstError holds none. Any goroutine may call its methods.
type FirstError struct{ p atomic.Pointer[error] }

// Set stores err unless there is an error already. It returns the first error.
func (e *FirstError) Set(err error) error {
	e.p.CompareAndSwap(nil, &err)
	return *e.p.Load()
}

// Get returns the first error, or nil.
func (e *FirstError) Get() error {
	if p := e.p.Load(); p != nil {
		return *p
	}
	return nil
}
