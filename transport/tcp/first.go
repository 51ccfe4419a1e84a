package tcp

import (
	"io"
	"sync/atomic"

	"github.com/tutti-go/tutti/fault"
)

// A firstError keeps the first error of a Conn, which is the one that it
// reports for good.
type firstError struct{ p atomic.Pointer[error] }

// set makes err the first error unless there is one, and returns the first.
func (e *firstError) set(err error) error {
	e.p.CompareAndSwap(nil, &err)
	return *e.p.Load()
}

// get is nil while nothing has failed.
func (e *firstError) get() error {
	if p := e.p.Load(); p != nil {
		return *p
	}
	return nil
}

// errClosed is the end of a Conn by its own Close.
func errClosed() error { return failure(fault.Closed, "this end has closed", nil) }

// errEOF is the end of a Conn whose peer has closed, or died.
func errEOF(midFrame bool) error {
	if midFrame {
		return failure(fault.LinkLost, "the peer ended the connection within a frame", io.ErrUnexpectedEOF)
	}
	return failure(fault.LinkLost, "the peer closed the connection", io.EOF)
}
