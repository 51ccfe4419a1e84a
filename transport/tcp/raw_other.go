//go:build !linux

package tcp

import (
	"net"

	"github.com/tutti-go/tutti/transport"
)

// ownsDescriptors: here every connection becomes a stream.
const ownsDescriptors = false

// newRaw is never called.
func (t *Transport) newRaw(_ *net.TCPConn, e entrant) (transport.Conn, error) {
	return t.newStream(e)
}

// onTheWay would be how many bytes the peer's system has not taken yet.
func onTheWay(net.Conn) (n int, known bool) { return 0, false }
