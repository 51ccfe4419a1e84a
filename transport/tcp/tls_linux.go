package tcp

import (
	"crypto/tls"
	"errors"
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
	sealBytes  = 64 << 10      // about what is encrypted between two writes to the socket
	maxUnsent  = 4 * sealBytes // of encrypted bytes; only a peer that asks for many answers reaches it
	stageBytes = 16 << 10      // pieces are joined up to this size: one TLS record
)

// A tlsConn is TLS on a raw's descriptor, after the handshake. It is what *tls.Conn reads from and
// writes to, and never blocks: a read without bytes returns errWouldBlock, after which a *tls.Conn
// can be read again, and a write stores what it is given. So the goroutine that calls Progress
// decrypts, and the one that calls Send encrypts; no other goroutine has to wake up.
//
//	field        belongs to
//	buf, more    the raw's reader
//	stage, plain the raw's writer
//	out, sent    mu: a *tls.Conn also writes when it answers what it has read
type tlsConn struct {
	conn *tls.Conn
	fd   int

	buf  []byte // buf[r:w] has been read from the socket and not been given to conn
	r, w int
	more bool // conn may hold bytes that it has not delivered

	stage []byte // joins short pieces
	plain int    // bytes given to conn since everything encrypted had been written

	mu   sync.Mutex // guards the rest
	out  []byte     // encrypted; out[sent:] has not been written
	sent int

	failed poll.FirstError // why errno was syscall.EPROTO
}

// errWouldBlock is the error of a read without bytes. A *tls.Conn keeps what it has read of a record
// if the error of the next read is temporary.
var errWouldBlock net.Error = wouldBlock{}

type wouldBlock struct{}

func (wouldBlock) Error() string   { return "no bytes have arrived" }
func (wouldBlock) Timeout() bool   { return true }
func (wouldBlock) Temporary() bool { return true }

// A swapper is a connection below TLS that another one can replace.
type swapper interface{ SetConn(net.Conn) }

// adoptTLS makes the descriptor of the connection below e.nc, which is under TLS, the Conn's own. It
// returns nil if that cannot be: the handshake is not done, or the connection below is of another
// kind.
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
	// With the end of the handshake, conn may have read what follows.
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

// read reads into a and then into b. Without bytes it returns syscall.EAGAIN. After an error that is
// not the system's it returns syscall.EPROTO, and failed has the error.
//
// It asks the socket first, so that a poll that finds nothing costs one read, as without TLS.
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

// fill reads from the socket into buf, which is empty. The end of the stream is left to Read.
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

// write writes parts, encrypted. n is how many of their bytes the socket has taken; what is encrypted
// and not yet written does not count. The next call has the same bytes first, and write does not
// encrypt them again.
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

// join appends a short piece to the stage and returns its length; 0 if it is long, or the stage is
// full.
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

// flush writes what is encrypted. When all of it is written, flush adds to n the bytes that it
// stands for.
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
		return 0, errors.New("too many bytes wait for a peer that reads none")
	}
	s.out = append(s.out, p...)
	return len(p), nil
}

// The raw closes the descriptor, and has no deadlines.

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
