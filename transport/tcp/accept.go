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

// A peekedConn is an accepted connection whose first bytes the listener has already read to
// determine its transport.
type peekedConn interface {
	net.Conn
	Peeked() []byte    // the bytes already read
	NetConn() net.Conn // the connection with the remaining bytes: *net.TCPConn or *tls.Conn
}

// An admitter is an accepted connection that its listener limits until Admit is called.
type admitter interface{ Admit() }

// A swappable is the connection below TLS. SetConn replaces what TLS reads from and writes to,
// while no goroutine does either.
type swappable struct{ net.Conn }

// SetConn replaces the connection.
func (s *swappable) SetConn(nc net.Conn) { s.Conn = nc }

// NetConn returns the connection that TLS reads and writes.
func (s *swappable) NetConn() net.Conn { return s.Conn }

// A closerSetter is an accepted connection. Its listener closes it if the peer does not
// authenticate in time. Once a raw Conn owns the descriptor, the listener cannot close the
// connection directly. So SetCloser gives the listener a function that closes the Conn.
type closerSetter interface{ SetCloser(end func() error) }

// A connCloser closes a connection on behalf of its listener, before and after the connection has
// become a Conn. The listener gets the method close as early as possible, because the listener's
// timer may fire at any moment.
type connCloser struct {
	mu     sync.Mutex // guards the rest
	closed bool
	conn   transport.Conn
}

// close closes the Conn. If there is no Conn yet, attach will close it.
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

// attach sets the Conn made from the connection. If close was called before, attach closes the
// Conn.
func (r *connCloser) attach(c transport.Conn) {
	r.mu.Lock()
	r.conn = c
	late := r.closed
	r.mu.Unlock()
	if late {
		c.Close()
	}
}

// A pendingConn is a connection that is about to become a Conn, dialled or accepted.
//
//	nc     what becomes the Conn: TCP, or TLS above it; nil if the connection is refused
//	outer  what the listener yielded around nc, if anything
//	first  bytes that the listener has read from nc
type pendingConn struct {
	nc       net.Conn
	outer    net.Conn // what the listener yielded, if not nc; it gets Admit and Close
	first    []byte   // bytes that the listener has already read
	accepted bool
}

// Serve accepts connections from in until Close, which closes in. It returns the address of in. The
// address of a listener on all interfaces works only on this host. For peers on other hosts, listen
// on a specific address or publish another address.
//
// The connections of in may be plain. With TLS options, a plain connection gets the TLS handshake.
// If in has read the first bytes of its connections, these connections have the methods
//
//	Peeked() []byte      // the bytes that were read
//	NetConn() net.Conn   // the connection itself: *net.TCPConn, or *tls.Conn when TLS is done
//
// The accepted Conn passes Admit and Close on to the connection that in yielded. If that connection
// has a method SetCloser(func() error), it gets a function that closes the Conn.
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

// After an Accept that fails for a reason that may pass, such as a lack of descriptors, the loop
// pauses. The pause doubles from minPause to maxPause.
const (
	minPause = 5 * time.Millisecond
	maxPause = time.Second
)

// acceptAll accepts connections until the listener is closed.
//
// Only the end of the listener or of the Transport ends the loop. So a process that lacks
// descriptors for a while serves again afterwards.
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
		if c, err := t.newConn(t.newPendingConn(nc, cfg)); err == nil {
			accept(c)
		}
		return
	}
	var r connCloser
	b.SetCloser(r.close)
	if c, err := t.newConn(t.newPendingConn(nc, cfg)); err == nil {
		r.attach(c)
		accept(c)
	}
}

// newPendingConn unwraps an accepted connection. If a connection must be under TLS but is not yet,
// its handshake takes place at the first read, with cfg.
func (t *Transport) newPendingConn(nc net.Conn, cfg *tls.Config) pendingConn {
	e := pendingConn{nc: nc, accepted: true}
	p, looked := nc.(peekedConn)
	if looked {
		e.nc, e.outer, e.first = p.NetConn(), nc, p.Peeked()
	}
	if tc, ok := e.nc.(*net.TCPConn); ok {
		tc.SetKeepAliveConfig(keepAlive) // best effort
	}
	if _, done := e.nc.(*tls.Conn); !done && t.options.TLS.Secures(nc.LocalAddr(), nc.RemoteAddr()) {
		if looked {
			e.nc = nil // not under TLS: newConn refuses it
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

// admit tells the listener that the peer is authenticated.
func (e *pendingConn) admit() {
	if a, ok := e.outer.(admitter); ok {
		a.Admit()
	} else if a, ok := e.nc.(admitter); ok {
		a.Admit()
	}
}

// newConn makes a Conn of e. It closes e on failure.
//
// On a system with epoll, a plain connection becomes a raw Conn. A connection under TLS also
// becomes a raw Conn if its handshake is done and the connection below TLS can be replaced. Every
// other connection becomes a stream.
func (t *Transport) newConn(e pendingConn) (transport.Conn, error) {
	if e.nc == nil {
		e.discard()
		return nil, failure(fault.Refused, "accept", errors.New("got a connection without TLS, want TLS: set the same TLS options on all ranks"))
	}
	if tc, ok := e.nc.(*net.TCPConn); ok && ownsDescriptors {
		return t.newRaw(tc, nil, e)
	}
	if tc, s := e.adoptTLS(); s != nil {
		return t.newRaw(tc, s, e)
	}
	return t.newStream(e)
}
