package remote

import (
	"context"
	"io"
	"net"
)

// A chunkStream is gRPC's end of a stream of raw bytes.
type chunkStream interface {
	SendMsg(any) error
	RecvMsg(any) error
}

// streamChunk is the maximum number of bytes of one message of raw bytes.
const streamChunk = 32 << 10

// pipe returns a net.Conn for a user, and its inner end, which copyOut and copyIn serve. A Close
// delivers what was written before. After that, at the far end Read returns io.EOF, and Write
// fails. The end of ctx closes the Conn.
func pipe(ctx context.Context) (user, inner net.Conn, detach func() bool) {
	user, inner = net.Pipe()
	return user, inner, context.AfterFunc(ctx, func() { inner.Close() })
}

// copyOut sends what the user writes, until the user closes the Conn or the stream ends.
func copyOut(s chunkStream, inner io.Reader) {
	buf := make([]byte, streamChunk)
	for {
		n, err := inner.Read(buf)
		if n > 0 && s.SendMsg(&chunk{buf[:n]}) != nil {
			return
		}
		if err != nil {
			return
		}
	}
}

// copyIn delivers received bytes until the stream ends, and returns the stream's error. After the
// user has closed the Conn, it discards received bytes, so that the far end does not block.
func copyIn(s chunkStream, inner io.WriteCloser) error {
	defer inner.Close()
	for {
		var m chunk
		if err := s.RecvMsg(&m); err != nil {
			return err
		}
		inner.Write(m.data)
	}
}
