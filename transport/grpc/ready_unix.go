//go:build unix

package grpc

import (
	"io"
	"net"
	"syscall"

	"google.golang.org/grpc/mem"
)

// A lazyReader reads from a socket into a buffer from the pool. It gets the buffer only when there
// is something to read. So an idle connection holds no buffer. gRPC does the same for the types of
// net.Conn that it knows. At most one goroutine uses it at a time.
type lazyReader struct {
	raw  syscall.RawConn
	try  func(fd uintptr) bool
	size int
	pool mem.BufferPool
	buf  *[]byte
	n    int
	err  error
}

// newLazyReader returns nil if c is no socket.
func newLazyReader(c net.Conn) *lazyReader {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil
	}
	l := &lazyReader{raw: raw}
	l.try = l.tryRead // made here, so that reading allocates nothing
	return l
}

// read waits for bytes and reads at most size of them. The caller gives a non-nil buffer back to
// the pool.
func (l *lazyReader) read(size int, pool mem.BufferPool) (*[]byte, int, error) {
	l.size, l.pool = size, pool
	l.buf, l.n, l.err = nil, 0, nil // in case raw.Read fails without calling try
	err := l.raw.Read(l.try)
	buf, n := l.buf, l.n
	if err == nil {
		err = l.err
	}
	l.buf, l.pool = nil, nil
	return buf, n, err
}

// tryRead makes one attempt to read. It returns false if the socket has no bytes yet.
func (l *lazyReader) tryRead(fd uintptr) bool {
	l.buf = l.pool.Get(l.size)
	for {
		l.n, l.err = syscall.Read(int(fd), *l.buf)
		if l.err != syscall.EINTR {
			break
		}
	}
	switch {
	case l.n > 0:
		return true
	case l.err == nil:
		l.err = io.EOF
	}
	l.pool.Put(l.buf)
	l.buf, l.n = nil, 0
	return l.err != syscall.EAGAIN
}
