package remote

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A conn turns the connection of a starter into a net.Conn for gRPC. Deadlines have no effect.
// Closing the conn unblocks Read and Write, and watch closes a conn whose far end is silent.
type conn struct {
	io.ReadWriteCloser
	arrived atomic.Uint64 // bytes received
	once    sync.Once
	closed  chan struct{}
	err     atomic.Pointer[error] // the first error of Read or Write
}

func newConn(rwc io.ReadWriteCloser) *conn {
	return &conn{ReadWriteCloser: rwc, closed: make(chan struct{})}
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.ReadWriteCloser.Read(b)
	c.arrived.Add(uint64(n))
	c.keep(err)
	return n, err
}

func (c *conn) Write(b []byte) (int, error) {
	n, err := c.ReadWriteCloser.Write(b)
	c.keep(err)
	return n, err
}

// keep keeps the first error, because it is more precise than gRPC's error. It ignores io.EOF,
// because the starter knows better why the connection has ended.
func (c *conn) keep(err error) {
	if err != nil && !isClosed(err) {
		c.err.CompareAndSwap(nil, &err)
	}
}

// isClosed reports whether an error says only that the connection has ended.
func isClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe) || errors.Is(err, net.ErrClosed)
}

// Close closes the connection once. Both gRPC and this package call it.
func (c *conn) Close() error {
	var err error
	c.once.Do(func() {
		close(c.closed)
		err = c.ReadWriteCloser.Close()
	})
	return err
}

func (c *conn) LocalAddr() net.Addr              { return pipeAddr{} }
func (c *conn) RemoteAddr() net.Addr             { return pipeAddr{} }
func (c *conn) SetDeadline(time.Time) error      { return nil }
func (c *conn) SetReadDeadline(time.Time) error  { return nil }
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

// A pipeAddr is the address of both ends.
type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "pipe" }

// A listener yields one connection to gRPC's server. Its second Accept blocks until Close.
type listener struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func listenOnce(c net.Conn) *listener {
	l := &listener{conns: make(chan net.Conn, 1), closed: make(chan struct{})}
	l.conns <- c
	return l
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *listener) Addr() net.Addr { return pipeAddr{} }

// dialOnce returns a dialer that yields c once, so that gRPC cannot connect again.
func dialOnce(c net.Conn) func(context.Context, string) (net.Conn, error) {
	conns := make(chan net.Conn, 1)
	conns <- c
	return func(context.Context, string) (net.Conn, error) {
		select {
		case c := <-conns:
			return c, nil
		default:
			return nil, net.ErrClosed
		}
	}
}
