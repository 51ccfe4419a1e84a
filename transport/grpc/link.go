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

// pendingBytes is the most that a peer may send, all of HTTP/2 included, before
// Admit: gRPC's own buffers for it stay below this, whatever its windows say.
const pendingBytes = 32 << 10

// drainTime is how long a connection that can no longer be written to is still
// read: what the peer sent before it went is delivered.
const drainTime = time.Second

// A link is a connection as gRPC sees it: it lies above TLS and below HTTP/2,
// notices how the connection ends before gRPC does, and decides when it is
// closed. gRPC reads on one goroutine and writes on another.
//
// gRPC's Close ends reading only. Writes go on until cut, because gRPC's server
// closes first and flushes what it has buffered afterwards (http2Server.Close,
// loopyWriter.run).
type link struct {
	net.Conn             // TCP, or TLS above it
	raw      net.Conn    // what was dialled or accepted
	lazy     *lazyReader // reads from Conn; nil when that is no socket
	first    []byte      // what was read from Conn already
	onError  func(error)

	over   chan struct{} // closed when the connection is of no use any more
	closed chan struct{} // closed when gRPC has called Close

	onOver, onClose, onCut sync.Once

	admitted      atomic.Bool
	unprovenBytes atomic.Int64 // bytes received before admission

	unwritten atomic.Pointer[error] // why Write first failed
}

// newLink wraps raw; above is what speaks on it, raw itself or TLS. lost hears
// of every failure to read or write, on gRPC's goroutines.
func newLink(raw, above net.Conn, lost func(error)) *link {
	l := &link{Conn: above, raw: raw, onError: lost, over: make(chan struct{}), closed: make(chan struct{})}
	if p, ok := above.(peeked); ok && terminated(raw) == nil {
		l.first, l.Conn = p.Peeked(), p.NetConn()
	}
	l.lazy = newLazyReader(l.Conn)
	return l
}

// A peeked connection has been read from already. It would replay that, but to go
// on with the connection below saves a call for each read and write.
type peeked interface {
	Peeked() []byte
	NetConn() net.Conn
}

// ReadOnReady is Read for gRPC's framer, which looks for it
// (internal/transport/readyreader.Reader) and else keeps a buffer of tuning.read
// bytes for every connection, busy or not. buf is the caller's when n > 0.
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

// Read is for the bytes that gRPC reads before it has a framer, and for TLS.
func (l *link) Read(b []byte) (int, error) {
	if n := copy(b, l.first); n > 0 {
		l.first = l.first[n:]
		return l.checkRead(n, nil)
	}
	return l.checkRead(l.Conn.Read(b))
}

// checkRead passes on what Read found, unless it is a stranger's who talks too much.
// Any failure ends the connection at once, so that a blocked Write comes back.
func (l *link) checkRead(n int, err error) (int, error) {
	if n > 0 && !l.admitted.Load() && l.unprovenBytes.Add(int64(n)) > pendingBytes {
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

// Write passes b on. After a failure it leaves Read some time to take what the
// peer sent before it went, and to learn better why it went.
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

// Close is gRPC's: nothing will be read any more.
func (l *link) Close() error {
	l.end()
	l.onClose.Do(func() { close(l.closed) })
	return l.raw.SetReadDeadline(time.Unix(1, 0))
}

// end says that the connection is of no use any more. It closes nothing.
func (l *link) end() { l.onOver.Do(func() { close(l.over) }) }

// A netConner stands on another connection, as *tls.Conn does.
type netConner interface{ NetConn() net.Conn }

// An admitter is an accepted connection whose listener bounds it until Admit.
type admitter interface{ Admit() }

// cut closes the connection, and never blocks: TLS's own Close may wait for
// seconds to send a goodbye, so what lies below it is closed first.
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

// admit lifts the bounds of a stranger, here and at the listener.
func (l *link) admit() {
	l.admitted.Store(true)
	if g, ok := l.raw.(admitter); ok {
		g.Admit()
	}
}

// terminated is the TLS connection that c is or wraps; nil when there is none.
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

// A singleConnListener is a listener that yields one connection, and then waits to be closed.
type singleConnListener struct {
	conn   chan net.Conn
	closed chan struct{}
	end    sync.Once
	addr   net.Addr
}

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

var errOnceClosed = errors.New("this listener yields one connection")
