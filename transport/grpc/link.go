package grpc

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/mem"
)

// pendingBytes is the maximum number of bytes that a peer may send before Admit, including all
// bytes of HTTP/2. It bounds gRPC's own buffers for an unauthenticated peer, whatever gRPC's
// windows are.
const pendingBytes = 32 << 10

// drainTime is how long a connection is still read after a write has failed. The read delivers the
// bytes that the peer sent before the failure.
const drainTime = time.Second

// A link is the connection that gRPC uses, above TLS and below HTTP/2. The link learns earlier than
// gRPC how the connection ends, and decides when the connection is closed. gRPC reads on one
// goroutine and writes on another.
//
// When gRPC calls Close, only reading ends. Writing continues until cut is called, because gRPC's
// server flushes its buffer after it has called Close (http2Server.Close, loopyWriter.run).
type link struct {
	net.Conn             // TCP, or TLS above it
	raw      net.Conn    // what was dialled or accepted
	lazy     *lazyReader // reads from Conn; nil if Conn is not a socket
	first    []byte      // bytes that the listener has already read
	onError  func(error)

	over   chan struct{} // closed by end
	closed chan struct{} // closed when gRPC has called Close

	onOver, onClose, onCut sync.Once

	admitted atomic.Bool
	arrived  atomic.Uint64 // bytes received

	unwritten atomic.Pointer[error] // the first error of Write
}

// newLink wraps raw. The argument above is the layer that carries HTTP/2: raw itself or TLS. The
// function lost is called on gRPC's goroutines for every failed read or write.
func newLink(raw, above net.Conn, lost func(error)) *link {
	l := &link{Conn: above, raw: raw, onError: lost, over: make(chan struct{}), closed: make(chan struct{})}
	if p, ok := above.(peeked); ok && terminated(raw) == nil {
		l.first, l.Conn = p.Peeked(), p.NetConn()
	}
	l.lazy = newLazyReader(l.Conn)
	return l
}

// A peeked is a connection whose first bytes the listener has already read. It could return these
// bytes again, but using the connection below it saves a call for each read and write.
type peeked interface {
	Peeked() []byte
	NetConn() net.Conn
}

// ReadOnReady is Read for gRPC's framer, which looks for this method
// (internal/transport/readyreader.Reader). Without this method, gRPC keeps a buffer of tuning.read
// bytes for every connection, even an idle one. If n > 0, buf belongs to the caller.
func (l *link) ReadOnReady(size int, pool mem.BufferPool) (buf *[]byte, n int, err error) {
	if l.lazy != nil && len(l.first) == 0 {
		buf, n, err = l.lazy.read(size, pool)
		n, err = l.checkRead(n, err)
	} else {
		buf = pool.Get(size)
		n, err = l.Read(*buf)
	}
	if n == 0 && buf != nil {
		pool.Put(buf)
		buf = nil
	}
	return buf, n, err
}

// Read serves TLS, and gRPC before gRPC has a framer.
func (l *link) Read(b []byte) (int, error) {
	if n := copy(b, l.first); n > 0 {
		l.first = l.first[n:]
		return l.checkRead(n, nil)
	}
	return l.checkRead(l.Conn.Read(b))
}

// checkRead returns the result of a read, or an error if an unauthenticated peer has sent too much.
// Any failure cuts the connection at once, so that a blocked Write returns.
//
// After a failed write, reading ends by the deadline that Write has set. Then checkRead returns the
// error of the write, which is the cause.
func (l *link) checkRead(n int, err error) (int, error) {
	if arrived := l.arrived.Add(uint64(n)); n > 0 && !l.admitted.Load() && arrived > pendingBytes {
		n, err = 0, fmt.Errorf("got more than %d bytes from a peer that is not authenticated yet", pendingBytes)
	}
	if err == nil {
		return n, nil
	}
	if w := l.unwritten.Load(); w != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		err = *w
	}
	l.onError(err)
	l.end()
	l.cut()
	return n, err
}

// Write writes b to the connection. After a failure it lets Read go on for drainTime. In this time
// Read delivers bytes that the peer sent earlier, and may find a more precise error.
func (l *link) Write(b []byte) (int, error) {
	n, err := l.Conn.Write(b)
	if err == nil {
		return n, nil
	}
	l.unwritten.CompareAndSwap(nil, &err)
	l.raw.SetReadDeadline(time.Now().Add(drainTime))
	timer := time.NewTimer(drainTime)
	defer timer.Stop()
	select {
	case <-l.over:
	case <-timer.C:
		l.onError(err)
	}
	return n, err
}

// Close ends reading. gRPC calls it.
func (l *link) Close() error {
	l.end()
	l.onClose.Do(func() { close(l.closed) })
	return l.raw.SetReadDeadline(time.Unix(1, 0))
}

// end marks the connection as useless. It closes nothing.
func (l *link) end() { l.onOver.Do(func() { close(l.over) }) }

// A netConner is a connection on top of another connection, such as a *tls.Conn.
type netConner interface{ NetConn() net.Conn }

// An admitter is an accepted connection that its listener limits until Admit is called.
type admitter interface{ Admit() }

// cut closes the connection and never blocks. It closes the connection below TLS first, because
// TLS's own Close may take seconds to send its alert.
//
// It may be called by any goroutine, any number of times.
func (l *link) cut() {
	l.onCut.Do(func() {
		for c := l.raw; ; {
			inner, ok := c.(netConner)
			if !ok || inner.NetConn() == nil {
				c.Close()
				break
			}
			c = inner.NetConn()
		}
		l.raw.Close()
	})
}

// admit lifts the limits of an unauthenticated peer, here and at the listener.
func (l *link) admit() {
	l.admitted.Store(true)
	if g, ok := l.raw.(admitter); ok {
		g.Admit()
	}
}

// terminated returns c itself if it is a TLS connection, or the TLS connection that c wraps. It
// returns nil if there is none.
func terminated(c net.Conn) *tls.Conn {
	for c != nil {
		if t, ok := c.(*tls.Conn); ok {
			return t
		}
		inner, ok := c.(netConner)
		if !ok {
			return nil
		}
		c = inner.NetConn()
	}
	return nil
}

// A singleConnListener yields one connection. Its second Accept waits for Close.
type singleConnListener struct {
	conn   chan net.Conn
	closed chan struct{}
	end    sync.Once
	addr   net.Addr
}

// listenOnce returns a listener that yields c. It exists because gRPC's server accepts connections
// only from a listener.
func listenOnce(c net.Conn) *singleConnListener {
	o := &singleConnListener{conn: make(chan net.Conn, 1), closed: make(chan struct{}), addr: c.LocalAddr()}
	o.conn <- c
	return o
}

func (o *singleConnListener) Accept() (net.Conn, error) {
	select {
	case c := <-o.conn:
		return c, nil
	case <-o.closed:
		return nil, errOnceClosed
	}
}

func (o *singleConnListener) Close() error {
	o.end.Do(func() { close(o.closed) })
	return nil
}

func (o *singleConnListener) Addr() net.Addr { return o.addr }

// errOnceClosed ends gRPC's accept loop.
var errOnceClosed = errors.New("this listener yields one connection")
