//go:build !linux

package tcp

import (
	"net"

	"github.com/tutti-go/tutti/transport"
)

// ownsDescriptors says that every connection becomes a stream on this system.
const ownsDescriptors = false

// newRaw satisfies newConn, which never calls it here.
func (t *Transport) newRaw(_ *net.TCPConn, _ *tlsConn, e pendingConn) (transport.Conn, error) {
	return t.newStream(e)
}

// A tlsConn is never made on this system. The type exists only because newConn names it.
type tlsConn struct{}

// adoptTLS leaves connections under TLS to streams.
func (e *pendingConn) adoptTLS() (*net.TCPConn, *tlsConn) { return nil, nil }

// unackedBytes returns no count, because this system does not report how many bytes the peer's
// kernel has not acknowledged.
func unackedBytes(net.Conn) (n int, known bool) { return 0, false }
