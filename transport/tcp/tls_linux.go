package tcp

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/tutti-go/tutti/internal/poll"
	"github.com/tutti-go/tutti/internal/race"
)

const (
	sealBytes = 64 << 10 // about the number of bytes encrypted between two writes
	// maxUnsent is the maximum number of unsent encrypted bytes. Only a peer that asks for many
	// answers reaches it.
	maxUnsent  = 4 * sealBytes
	stageBytes = 16 << 10 // pieces are joined up to this size: one TLS record
)

// A tlsConn is TLS on a raw's descriptor, after the handshake. The *tls.Conn reads from the tlsConn
// and writes to it. Neither call blocks. If there are no bytes, a read returns errWouldBlock, and
// the *tls.Conn can be read again later. A write stores the bytes. So the goroutine that calls
// Progress decrypts, the goroutine that calls Send encrypts, and no other goroutine has to wake up.
//
//	field        belongs to
//	buf, more    the raw's reader
//	stage, plain the raw's writer
//	out, sent    mu, because a *tls.Conn also writes when it answers a record that it has read
type tlsConn struct {
	conn *tls.Conn
	fd   int

	buf  []byte // buf[r:w] has been read from the socket and not been given to conn
	r, w int
	more bool // conn may hold bytes that it has not delivered

	stage []byte // joins short pieces
	plain int    // bytes given to conn since all encrypted bytes were last written

	mu   sync.Mutex // guards the rest
	out  []byte     // encrypted; out[sent:] has not been written
	sent int

	failed poll.FirstError // why errno was syscall.EPROTO
}

// errWouldBlock is the error of a read without bytes. The error is temporary, so a *tls.Conn keeps
// the part of a record that it has read.
var errWouldBlock net.Error = wouldBlock{}

type wouldBlock struct{}

func (wouldBlock) Error() string   { return "no bytes have arrived" }
func (wouldBlock) Timeout() bool   { return true }
func (wouldBlock) Temporary() bool { return true }

// A swapper is a connection below TLS that can be replaced by another connection.
type swapper interface{ SetConn(net.Conn) }

// adoptTLS takes over the TCP connection below e.nc, which is under TLS, so that the Conn can own
// its descriptor. It returns nil if this is impossible, because the handshake is not done or the
// connection below TLS is of another kind.
func (e *pendingConn) adoptTLS() (tc *net.TCPConn, s *tlsConn) {
	conn, ok := e.nc.(*tls.Conn)
	if !ok || !conn.ConnectionState().HandshakeComplete {
		return nil, nil
	}
	below, ok := conn.NetConn().(swapper)
	if !ok {
		return nil, nil
	}
	if tc, ok = innermost(conn).(*net.TCPConn); !ok {
		return nil, nil
	}
	// Together with the end of the handshake, conn may have read bytes that follow it.
	s = &tlsConn{conn: conn, more: true}
	below.SetConn(s)
	return tc, s
}

// grow gives buf its full size, once the peer is authenticated.
func (s *tlsConn) grow() {
	buf := make([]byte, readBuffer)
	s.r, s.w = 0, copy(buf, s.buf[s.r:s.w])
	s.buf = buf
}

// read reads into a and then into b. Without bytes it returns syscall.EAGAIN. After an error that
// does not come from the system, it returns syscall.EPROTO, and the field failed has the error.
//
// It reads the socket first, so that a poll that finds nothing costs one read, as without TLS.
func (s *tlsConn) read(a, b []byte) (n int, errno syscall.Errno) {
	if !s.more && s.r == s.w {
		if errno := s.fill(); errno != 0 {
			return 0, errno
		}
	}
	for _, p := range [2][]byte{a, b} {
		for len(p) > 0 {
			k, err := s.conn.Read(p)
			n, p, s.more = n+k, p[k:], err != errWouldBlock
			switch {
			case err == nil:
			case n > 0: // the next call returns the error
				return n, 0
			case err == errWouldBlock:
				return 0, syscall.EAGAIN
			case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
				return 0, 0 // the peer has closed or died, perhaps within a record
			default:
				s.failed.Set(err)
				return 0, syscall.EPROTO
			}
		}
	}
	return n, 0
}

// fill reads from the socket into buf, which is empty. It leaves the end of the stream to Read.
func (s *tlsConn) fill() syscall.Errno {
	n, errno := readVector(s.fd, nil, s.buf)
	if errno == syscall.EAGAIN {
		return errno
	}
	s.r, s.w = 0, n
	s.more = true // also after an error, which the next read of the socket returns again
	return 0
}

// Read implements net.Conn for conn.
func (s *tlsConn) Read(p []byte) (int, error) {
	if s.r == s.w {
		n, errno := readVector(s.fd, nil, s.buf)
		switch {
		case errno == syscall.EAGAIN:
			return 0, errWouldBlock
		case errno != 0:
			return 0, os.NewSyscallError("read", errno)
		case n == 0:
			return 0, io.EOF
		}
		s.r, s.w = 0, n
	}
	n := copy(p, s.buf[s.r:s.w])
	s.r += n
	return n, nil
}

// write encrypts the parts and writes them. The result n is how many of their bytes the socket has
// accepted. Bytes that are encrypted and not yet written do not count. The caller passes these
// bytes again, at the beginning of the next call, and write does not encrypt them again.
func (s *tlsConn) write(parts [][]byte) (n int, errno syscall.Errno) {
	if errno := s.flush(&n); errno != 0 {
		return 0, errno
	}
	skip := n
	for _, p := range parts {
		k := min(skip, len(p))
		skip, p = skip-k, p[k:]
		for len(p) > 0 {
			if k = s.join(p); k == 0 {
				k = min(len(p), sealBytes)
				s.seal(s.stage)
				s.seal(p[:k])
				s.stage = s.stage[:0]
				if errno := s.flush(&n); errno != 0 {
					return n, errno
				}
			}
			p = p[k:]
		}
	}
	s.seal(s.stage)
	s.stage = s.stage[:0]
	errno = s.flush(&n)
	return n, errno
}

// join appends a short piece to the stage and returns its length. It returns 0 if the piece is long
// or the stage is full.
func (s *tlsConn) join(p []byte) int {
	if len(s.stage)+len(p) > stageBytes {
		return 0
	}
	s.stage = append(s.stage, p...)
	return len(p)
}

// seal encrypts p, whose ciphertext conn passes to Write.
func (s *tlsConn) seal(p []byte) {
	if len(p) == 0 {
		return
	}
	if _, err := s.conn.Write(p); err != nil {
		s.failed.Set(err)
	}
	s.plain += len(p)
}

// flush writes the encrypted bytes. When all of them are written, flush adds the number of plain
// bytes to n.
func (s *tlsConn) flush(n *int) syscall.Errno {
	if s.failed.Get() != nil {
		return syscall.EPROTO
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.sent < len(s.out) {
		left := s.out[s.sent:]
		race.Release()
		k, errno := ioCall(syscall.SYS_WRITE, s.fd, unsafe.Pointer(unsafe.SliceData(left)), len(left), len(left))
		if errno != 0 {
			return errno
		}
		s.sent += k
	}
	s.out, s.sent = s.out[:0], 0
	*n += s.plain
	s.plain = 0
	return 0
}

// Write implements net.Conn for conn. It stores p.
func (s *tlsConn) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.out) > maxUnsent {
		return 0, fmt.Errorf("unsent bytes: got %d, want at most %d; the peer reads nothing", len(s.out), maxUnsent)
	}
	s.out = append(s.out, p...)
	return len(p), nil
}

// The methods below do nothing, because the raw closes the descriptor and has no deadlines.

// Close implements net.Conn.
func (s *tlsConn) Close() error { return nil }

// LocalAddr implements net.Conn.
func (s *tlsConn) LocalAddr() net.Addr { return nil }

// RemoteAddr implements net.Conn.
func (s *tlsConn) RemoteAddr() net.Addr { return nil }

// SetDeadline implements net.Conn.
func (s *tlsConn) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements net.Conn.
func (s *tlsConn) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements net.Conn.
func (s *tlsConn) SetWriteDeadline(time.Time) error { return nil }
