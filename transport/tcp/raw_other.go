//go:build !linux

package tcp

import (
	"net"

	"github.com/tutti-go/tutti/transport"
)

// ownsDescriptors: here every connection becomes a stream.
const ownsDescriptors = false

// newRaw is never called.
func (t *Transport) newRaw(_ *net.TCPConn, e pendingConn) (transport.Conn, error) {
	return t.newStream(e)
}

// unackedBytes would be how many bytes the peer's system has not taken yet.
func unackedBytes(net.Conn) (n int, known bool) { return 0, false }
