package tcp

import (
	"io"

	"github.com/tutti-go/tutti/fault"
)

// errClosed is the end of a Conn by its own Close.
func errClosed() error { return failure(fault.Closed, "this end has closed", nil) }

// errEOF is the end of a Conn whose peer has closed, or died.
func errEOF(midFrame bool) error {
	if midFrame {
		return failure(fault.LinkLost, "the peer ended the connection within a frame", io.ErrUnexpectedEOF)
	}
	return failure(fault.LinkLost, "the peer closed the connection", io.EOF)
}
