package tcp

import (
	"io"

	"github.com/tutti-go/tutti/fault"
)

// errClosed is the error of a Conn that its own Close has ended.
func errClosed() error { return failure(fault.Closed, "this end has closed", nil) }

// errEOF returns the error of a Conn whose peer has closed or died. The stream does not show which
// of the two has happened.
func errEOF(midFrame bool) error {
	if midFrame {
		return failure(fault.LinkLost, "the peer ended the connection within a frame", io.ErrUnexpectedEOF)
	}
	return failure(fault.LinkLost, "the peer closed the connection", io.EOF)
}
