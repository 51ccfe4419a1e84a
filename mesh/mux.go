package mesh

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/tutti-go/tutti/transport"
)

// What a stranger may have: connections that have proven nothing hold one of so
// many slots, for so long, and cost no more than a guest and its peeked bytes.
const (
	pendingSlots     = 64
	handshakeTimeout = 5 * time.Second
	maxPeek          = 32 // bytes read to tell whose a connection is
	minPeek          = 4  // bytes that transport.Greeter.Prefix wants
	tlsRecord        = 0x16
)

var errNotAuthenticated = fmt.Errorf("it has not proven its identity within %v", handshakeTimeout)

// A mux is this process's one listener. It looks at the first bytes of every
// connection and hands those that are the transport's on to it, as guests.
type mux struct {
	ln       net.Listener
	greeter  transport.Greeter // nil: everything is the transport's
	tls      *tls.Config       // nil: plain connections
	log      *slog.Logger
	accepted chan net.Conn
	done     chan struct{} // closed by Close
	work     sync.WaitGroup

	mu       sync.Mutex // guards the rest
	pending  map[*pendingConn]struct{}
	closed   bool
	dropped  int       // connections closed for want of a slot, not logged yet
	loggedAt time.Time // when that was logged last
}

// openMux starts accepting on ln. Close ends it and closes ln.
func openMux(ln net.Listener, tr transport.Transport, conf *tls.Config, log *slog.Logger) *mux {
	f := &mux{
		ln: ln, log: log,
		accepted: make(chan net.Conn),
		done:     make(chan struct{}),
		pending:  make(map[*pendingConn]struct{}),
	}
	if g, ok := tr.(transport.Greeter); ok && g.Proto() != "" {
		f.greeter = g
	}
	if conf != nil {
		f.tls = conf.Clone()
		if f.greeter != nil {
			f.tls.NextProtos = []string{f.greeter.Proto()}
		}
	}
	f.work.Go(f.acceptAll)
	return f
}

// Close ends everything that has not been admitted, and waits for it.
func (f *mux) Close() {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		f.work.Wait()
		return
	}
	f.closed = true
	left := make([]*pendingConn, 0, len(f.pending))
	for g := range f.pending {
		left = append(left, g)
	}
	f.mu.Unlock()
	close(f.done)
	f.ln.Close()
	for _, g := range left {
		g.drop()
	}
	f.work.Wait()
}

// acceptAll gives each connection a slot and a goroutine, or closes it.
func (f *mux) acceptAll() {
	pause := time.Millisecond
	for {
		nc, err := f.ln.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// A lack of descriptors or memory may pass.
			f.log.Warn("accept failed; retrying", "err", err)
			select {
			case <-f.done:
				return
			case <-time.After(pause):
				pause = min(2*pause, time.Second)
			}
			continue
		}
		pause = time.Millisecond
		if g := f.reserve(nc); g != nil {
			f.work.Go(func() { f.classify(g) })
		} else {
			nc.Close()
		}
	}
}

// reserve takes a slot; nil when there is none.
func (f *mux) reserve(nc net.Conn) *pendingConn {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	if len(f.pending) >= pendingSlots {
		f.logDropped()
		return nil
	}
	g := &pendingConn{prefixedConn: prefixedConn{Conn: nc}, mux: f, deadline: time.Now().Add(handshakeTimeout)}
	nc.SetDeadline(g.deadline)
	g.timer = time.AfterFunc(handshakeTimeout, g.expire)
	f.pending[g] = struct{}{}
	return g
}

// logDropped logs, once a second at most, how many found no slot. f.mu is held.
func (f *mux) logDropped() {
	f.dropped++
	if now := time.Now(); now.Sub(f.loggedAt) >= time.Second {
		f.log.Warn("connections closed without a handshake: too many are pending",
			"closed", f.dropped, "slots", pendingSlots)
		f.loggedAt, f.dropped = now, 0
	}
}

// release gives a guest's slot back; false when it was given back before.
func (f *mux) release(g *pendingConn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, held := f.pending[g]
	delete(f.pending, g)
	return held
}

// classify finds out whose a connection is, and hands it on. It ends within
// strangerTime, by the deadline.
func (f *mux) classify(g *pendingConn) {
	if err := f.sniff(g); err != nil {
		if len(g.peeked) == 0 && errors.Is(err, io.EOF) && g.drop() {
			return // it looked whether the port is open
		}
		f.refuse(g, err.Error())
		return
	}
	select {
	case f.accepted <- g:
	case <-f.done:
		g.drop()
	case <-time.After(time.Until(g.deadline)):
		f.refuse(g, "the transport did not accept it in time")
	}
}

// sniff reads a connection's first bytes, or does its TLS handshake.
func (f *mux) sniff(g *pendingConn) error {
	buf := make([]byte, maxPeek)
	n, err := io.ReadAtLeast(g.Conn, buf, minPeek)
	g.peeked = buf[:n]
	g.prefix = g.peeked
	switch secure := n > 0 && buf[0] == tlsRecord; {
	case isTimeout(err):
		return errNotAuthenticated
	case err != nil:
		return fmt.Errorf("it closed after %d bytes: %w", n, err)
	case f.tls == nil && secure:
		return errors.New("it speaks TLS, and this port does not")
	case f.tls != nil && !secure:
		return fmt.Errorf("it does not speak TLS, which this port requires; its first bytes are %q", g.peeked)
	case f.tls != nil:
		return f.startTLS(g)
	case f.greeter != nil && !f.greeter.Prefix(g.peeked):
		return fmt.Errorf("it does not speak this transport's protocol: its first bytes are %q", g.peeked)
	}
	return nil
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// startTLS does the TLS handshake, and puts the TLS connection in the guest's place.
func (f *mux) startTLS(g *pendingConn) error {
	g.peeked = nil
	tc := tls.Server(&g.prefixedConn, f.tls)
	if err := tc.Handshake(); err != nil {
		return fmt.Errorf("TLS: %w", err)
	}
	if f.greeter != nil && tc.ConnectionState().NegotiatedProtocol != f.greeter.Proto() {
		return fmt.Errorf("TLS: it asks for the protocol %q, not %q", tc.ConnectionState().NegotiatedProtocol, f.greeter.Proto())
	}
	g.tls = tc
	return nil
}

// refuse closes a guest and says why, in one line.
func (f *mux) refuse(g *pendingConn, why string) {
	if g.drop() {
		f.log.Warn("a connection refused", "from", g.RemoteAddr(), "because", why)
	}
}

// muxListener is the front as the transport sees it: a listener of guests.
type muxListener struct {
	*mux
	addr       net.Addr
	once       sync.Once
	acceptDone chan struct{}
}

func (f *mux) listener(addr net.Addr) *muxListener {
	return &muxListener{mux: f, addr: addr, acceptDone: make(chan struct{})}
}

func (d *muxListener) Accept() (net.Conn, error) {
	select {
	case nc := <-d.accepted:
		return nc, nil
	case <-d.acceptDone:
	case <-d.done:
	}
	return nil, net.ErrClosed
}

// Close ends Accept only; the Mesh closes the front.
func (d *muxListener) Close() error {
	d.once.Do(func() { close(d.acceptDone) })
	return nil
}

func (d *muxListener) Addr() net.Addr { return d.addr }

// A pendingConn is an accepted connection whose peer has proven nothing yet. It reads
// as if nobody had looked at it. The transport may instead take Peeked and go on
// with NetConn.
type pendingConn struct {
	prefixedConn // as accepted
	mux          *mux
	tls          *tls.Conn // TLS over Conn; nil without
	deadline     time.Time
	timer        *time.Timer
	closer       func() error // guarded by front.mu
	peeked       []byte       // what sniff has read; nil under TLS
}

// Peeked is what was read already, at most 32 bytes; none under TLS.
func (g *pendingConn) Peeked() []byte { return g.peeked }

// NetConn is what Peeked was read from: the accepted connection, or its *tls.Conn.
func (g *pendingConn) NetConn() net.Conn {
	if g.tls != nil {
		return g.tls
	}
	return g.Conn
}

// Admit says that the peer belongs to the job. The slot is free again, and the
// connection may stay.
func (g *pendingConn) Admit() {
	if g.mux.release(g) {
		g.timer.Stop()
		g.Conn.SetDeadline(time.Time{})
	}
}

// Close ends the connection. It comes from the transport: when the Conn that it
// made of it is closed, or when it could make none.
func (g *pendingConn) Close() error {
	g.mux.mu.Lock()
	unsaid := g.closer == nil && !g.mux.closed
	g.mux.mu.Unlock()
	why := errors.New("it closed, or sent malformed bytes, before it had proven its identity")
	if time.Until(g.deadline) < 100*time.Millisecond {
		why = errNotAuthenticated // the transport has a limit of its own
	}
	if g.drop() && unsaid {
		g.mux.log.Warn("a connection refused", "from", g.RemoteAddr(), "because", why)
	}
	return g.NetConn().Close()
}

// drop closes the accepted connection and frees the slot; false when the guest
// held none any more.
func (g *pendingConn) drop() bool {
	held := g.mux.release(g)
	g.timer.Stop()
	g.Conn.Close()
	return held
}

// SetCloser says that the transport makes a Conn of the connection, and names what ends
// it: its descriptor may be another one then, and Close alone would end nothing.
// From then on the handshake says why the connection is refused.
func (g *pendingConn) SetCloser(end func() error) {
	g.mux.mu.Lock()
	defer g.mux.mu.Unlock()
	g.closer = end
}

// expire ends a guest that has not been admitted in time.
func (g *pendingConn) expire() {
	g.mux.mu.Lock()
	end := g.closer
	g.mux.mu.Unlock()
	g.mux.refuse(g, errNotAuthenticated.Error())
	if end != nil {
		end()
	}
}

func (g *pendingConn) Read(b []byte) (int, error) {
	if g.tls != nil {
		return g.tls.Read(b)
	}
	return g.prefixedConn.Read(b)
}

func (g *pendingConn) Write(b []byte) (int, error) { return g.NetConn().Write(b) }

// prefixedConn is a connection whose first bytes were read already.
type prefixedConn struct {
	net.Conn
	prefix []byte
}

func (r *prefixedConn) Read(b []byte) (int, error) {
	if len(r.prefix) > 0 {
		n := copy(b, r.prefix)
		r.prefix = r.prefix[n:]
		return n, nil
	}
	return r.Conn.Read(b)
}
