package tcp

import (
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// A peekedConn is an accepted connection whose first bytes somebody has read already
// to find out whose it is.
type peekedConn interface {
	net.Conn
	Peeked() []byte    // what was read
	NetConn() net.Conn // what to read the rest from: *net.TCPConn or *tls.Conn
}

// An admitter wants to know when an accepted connection's peer is admitted.
type admitter interface{ Admit() }

// A closerSetter wants to end an accepted connection that was not admitted in time, and
// cannot do so by itself once its descriptor has been taken over.
type closerSetter interface{ SetCloser(end func() error) }

// A connCloser is what a binder is given: it ends a connection before and after that
// has become a Conn.
type connCloser struct {
	mu     sync.Mutex // guards what follows
	closed bool
	conn   transport.Conn
}

func (r *connCloser) close() error {
	r.mu.Lock()
	r.closed = true
	c := r.conn
	r.mu.Unlock()
	if c == nil {
		return nil
	}
	return c.Close()
}

// attach tells which Conn the connection has become, and ends it if it is too late.
func (r *connCloser) attach(c transport.Conn) {
	r.mu.Lock()
	r.conn = c
	late := r.closed
	r.mu.Unlock()
	if late {
		c.Close()
	}
}

// An pendingConn is a connection on its way to becoming a Conn.
type pendingConn struct {
	nc       net.Conn
	outer    net.Conn // what the listener yielded, when it is not nc; told of Admit and Close
	first    []byte   // bytes that were read already
	accepted bool
}

// Serve accepts connections from in until Close, which closes in. The address is
// in's own; a listener on all interfaces is reached from this host by it, and
// whoever wants to be reached from others listens on, or publishes, a better one.
//
// in may yield plain connections, which then get the TLS handshake if there are
// TLS options; or connections that somebody has looked at, with the methods
//
//	Peeked() []byte      // the bytes that were read
//	NetConn() net.Conn   // the connection itself: *net.TCPConn, or *tls.Conn when TLS is done
//
// The accepted Conn's Admit and Close are passed on to what in yielded. If that
// has a method Bind(func() error), it is given what ends the Conn.
func (t *Transport) Serve(in net.Listener, accept func(transport.Conn)) (string, error) {
	if in == nil || accept == nil {
		return "", failure(fault.Misuse, "serve", errors.New("got a nil listener or accept function, want both"))
	}
	var cfg *tls.Config
	if t.options.TLS != nil {
		var err error
		if cfg, err = t.options.TLS.Server(proto); err != nil {
			return "", err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return "", failure(fault.Closed, "serve", nil)
	case t.in != nil:
		return "", failure(fault.Misuse, "serve", errors.New("already serving: call Serve once"))
	}
	t.in = in
	t.open.Go(func() { t.acceptAll(in, cfg, accept) })
	return in.Addr().String(), nil
}

// The accept loop's pause after a failure that may pass, such as a lack of
// descriptors, grows from the first to the second.
const (
	minPause = 5 * time.Millisecond
	maxPause = time.Second
)

// acceptAll ends when the listener is closed.
func (t *Transport) acceptAll(in net.Listener, cfg *tls.Config, accept func(transport.Conn)) {
	pause := minPause
	for {
		nc, err := in.Accept()
		switch {
		case err == nil:
			pause = minPause
			t.handleAccepted(nc, cfg, accept)
			continue
		case errors.Is(err, net.ErrClosed):
			return
		}
		select {
		case <-t.life.Done():
			return
		case <-time.After(pause):
			pause = min(2*pause, maxPause)
		}
	}
}

// handleAccepted makes a Conn of an accepted connection.
func (t *Transport) handleAccepted(nc net.Conn, cfg *tls.Config, accept func(transport.Conn)) {
	b, ok := nc.(closerSetter)
	if !ok {
		if c, err := t.newConn(newPendingConn(nc, cfg)); err == nil {
			accept(c)
		}
		return
	}
	var r connCloser
	b.SetCloser(r.close)
	if c, err := t.newConn(newPendingConn(nc, cfg)); err == nil {
		r.attach(c)
		accept(c)
	}
}

// newPendingConn unwraps an accepted connection. With cfg, whatever is not under TLS
// yet has its handshake with the first read.
func newPendingConn(nc net.Conn, cfg *tls.Config) pendingConn {
	e := pendingConn{nc: nc, accepted: true}
	p, looked := nc.(peekedConn)
	if looked {
		e.nc, e.outer, e.first = p.NetConn(), nc, p.Peeked()
	}
	if tc, ok := e.nc.(*net.TCPConn); ok {
		tc.SetKeepAliveConfig(keepAlive) // worth trying only
	}
	if _, done := e.nc.(*tls.Conn); cfg != nil && !done {
		if looked {
			e.nc = nil // in clear, where TLS is asked for
			return e
		}
		e.nc = tls.Server(e.nc, cfg)
	}
	return e
}

// discard closes a connection that does not become a Conn.
func (e *pendingConn) discard() {
	if e.nc != nil {
		e.nc.Close()
	}
	if e.outer != nil {
		e.outer.Close()
	}
}

// admit passes Admit on.
func (e *pendingConn) admit() {
	if a, ok := e.outer.(admitter); ok {
		a.Admit()
	} else if a, ok := e.nc.(admitter); ok {
		a.Admit()
	}
}

// newConn makes a Conn of e. It closes e on failure.
func (t *Transport) newConn(e pendingConn) (transport.Conn, error) {
	if e.nc == nil {
		e.discard()
		return nil, failure(fault.Refused, "accept", errors.New("got a connection without TLS, want TLS: set the same TLS options on all ranks"))
	}
	if tc, ok := e.nc.(*net.TCPConn); ok && ownsDescriptors {
		return t.newRaw(tc, e)
	}
	return t.newStream(e)
}
