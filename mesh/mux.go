package mesh

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/tutti-go/tutti/internal/pending"
	"github.com/tutti-go/tutti/transport"
)

// The bounds on unauthenticated peers: a connection whose peer has proven nothing holds one of
// pendingSlots slots, for at most handshakeTimeout, and costs no more than a pendingConn and its
// peeked bytes. While other connections wait for a slot, the connection keeps its slot for
// slotHold, for tlsHold once it has begun a TLS handshake, or for greetedHold once its hello has
// named the job.
//
// A rank's hello follows its first bytes at once, so slotHold only has to cover the scheduling of
// this process. After the hello, the peer's process must run, too, so greetedHold is longer. Under
// TLS the hello comes a round trip later, so tlsHold is the longest round trip that a rank may
// have.
const (
	pendingSlots     = 64
	handshakeTimeout = 5 * time.Second
	shortageTime     = time.Second // a lack of file descriptors that lasts longer is a
	// failure
	greetTimeout = time.Second            // for the first minPeek bytes
	slotHold     = 100 * time.Millisecond // from when the connection was accepted
	tlsHold      = 500 * time.Millisecond // from the first bytes of a TLS handshake
	greetedHold  = time.Second            // from the hello
	maxPeek      = 32                     // bytes read at most to find out which protocol a connection speaks
	minPeek      = 4                      // bytes that transport.Greeter.Prefix needs
	tlsRecord    = 0x16                   // the first byte of every TLS handshake
)

// errNotAuthenticated is the refusal of a peer that did not complete the handshake in time.
var errNotAuthenticated = fmt.Errorf("the peer has not proven its identity within %v", handshakeTimeout)

// errSlotNeeded is the refusal of a peer that had proved nothing when another connection took its
// slot.
var errSlotNeeded = fmt.Errorf("the peer has not proven its identity, and other connections wait for one of the %d slots", pendingSlots)

// errDescriptorNeeded is the refusal of a peer that had proved nothing when this process had no
// descriptor left for the next connection.
var errDescriptorNeeded = errors.New("the peer has not proven its identity, and this process has no file descriptor left for other connections")

// A mux is this process's one listener. It reads the first bytes of every connection, does the TLS
// handshake if there is one, and passes a connection that speaks the transport's protocol to the
// transport, as a transport.Pending. It closes every other connection, and logs at most one line
// for it.
//
// A connection holds its slot from reserve until release. Admit calls release when the peer has
// proven its identity. drop calls release when the connection is refused, expires or is closed.
//
// When all slots are taken, the next connection takes the slot of another connection, which the
// method victim chooses. So slow connections delay a rank, but cannot keep it out.
type mux struct {
	ln         net.Listener
	greeter    transport.Greeter // nil: every connection is the transport's
	tls        *tls.Config       // nil: plain connections
	secures    Secures           // which connections are under TLS; nil: all, if tls is set
	refusals   *pending.Log
	onShortage func(error)   // called when file descriptors are short for shortageTime and no connection can be evicted
	accepted   chan net.Conn // classified connections, to muxListener.Accept
	slotFree   wakeup        // raised by release
	done       chan struct{} // closed by Close
	work       sync.WaitGroup

	mu      sync.Mutex                // guards the rest
	pending map[*pendingConn]struct{} // the connections that hold a slot
	closed  bool
}

// openMux starts accepting on ln. Close stops accepting and closes ln.
func openMux(ln net.Listener, tr transport.Transport, conf *tls.Config, secures Secures, refusals *pending.Log, onShortage func(error)) *mux {
	f := &mux{
		ln: ln, secures: secures, refusals: refusals, onShortage: onShortage,
		accepted: make(chan net.Conn),
		slotFree: newWakeup(),
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

// Close closes every connection that has not been admitted, and waits for the goroutines of these
// connections. Admitted connections belong to the transport. A second call waits, too.
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

// acceptAll accepts connections. It gives each connection a slot and a goroutine, or closes it.
// After an error of Accept, such as too many open files, it retries with growing pauses, because
// the job may go on with the links that it has. If descriptors are short, it evicts a connection
// before each retry, so that connections whose peers prove nothing do not keep out the job's ranks.
func (f *mux) acceptAll() {
	pause := time.Millisecond
	var failedFor time.Duration
	for {
		nc, err := f.ln.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// A lack of descriptors or memory may be temporary.
			f.refusals.AcceptFailed(err)
			failedFor += pause
			if lacksDescriptors(err) && !f.freeDescriptor() && failedFor > shortageTime {
				f.onShortage(err)
			}
			select {
			case <-f.done:
				return
			case <-time.After(pause):
				pause = min(2*pause, time.Second)
			}
			continue
		}
		pause, failedFor = time.Millisecond, 0
		if g := f.reserve(nc); g != nil {
			f.work.Go(func() { f.classify(g) })
		} else {
			nc.Close()
		}
	}
}

// reserve gives a connection a slot and a deadline. When all slots are taken, it waits until a slot
// is free, or until a connection may be evicted. Meanwhile, the other connections wait in the
// listener's queue. It returns nil when the mux closes.
func (f *mux) reserve(nc net.Conn) *pendingConn {
	for {
		g, victim, wait := f.tryReserve(nc)
		switch {
		case g != nil:
			return g
		case victim == nil:
			return nil // the mux is closed
		case wait <= 0:
			f.evict(victim, errSlotNeeded)
			continue
		}
		select {
		case <-f.slotFree:
		case <-time.After(wait):
		case <-f.done:
			return nil
		}
	}
}

// tryReserve gives a connection a slot if one is free. Otherwise it returns the connection to evict
// as victim, and how long victim is still protected from eviction. After Close, both connections
// are nil.
func (f *mux) tryReserve(nc net.Conn) (g, victim *pendingConn, wait time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	switch {
	case f.closed:
		return nil, nil, 0
	case len(f.pending) >= pendingSlots:
		victim = f.victim()
		return nil, victim, victim.notEvictedBefore.Sub(now)
	}
	g = &pendingConn{
		prefixedConn: prefixedConn{Conn: nc}, mux: f, source: pending.Source(nc.RemoteAddr()),
		deadline: now.Add(handshakeTimeout), notEvictedBefore: now.Add(slotHold), released: make(chan struct{}),
	}
	nc.SetDeadline(g.deadline)
	g.timer = time.AfterFunc(handshakeTimeout, g.expire)
	f.pending[g] = struct{}{}
	return g, nil, 0
}

// victim returns the connection to evict when no slot or no descriptor is free, or nil if no
// connection holds a slot. A connection from the same host can evict a rank only after slotHold.
// Within that time the rank sends its hello. f.mu is held.
func (f *mux) victim() *pendingConn {
	return pending.Victim(maps.Keys(f.pending), func(g *pendingConn) (netip.Prefix, time.Time) {
		return g.source, g.notEvictedBefore
	})
}

// extend protects the connection from addr from eviction for greetedHold, because its hello has
// named the job.
func (f *mux) extend(addr net.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for g := range f.pending {
		if g.RemoteAddr().String() == addr.String() {
			g.notEvictedBefore = time.Now().Add(greetedHold)
		}
	}
}

// beginTLS protects a connection from eviction for tlsHold, because it has begun a TLS handshake.
func (f *mux) beginTLS(g *pendingConn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	g.notEvictedBefore = time.Now().Add(tlsHold)
}

// freeDescriptor makes a file descriptor free: it evicts the connection that victim chooses. It
// evicts none, and returns false, if there is no such connection or if that connection is protected
// until notEvictedBefore.
func (f *mux) freeDescriptor() bool {
	f.mu.Lock()
	victim := f.victim()
	evictable := victim != nil && !time.Now().Before(victim.notEvictedBefore)
	f.mu.Unlock()
	if evictable {
		f.evict(victim, errDescriptorNeeded)
	}
	return evictable
}

// evict closes a connection whose slot or descriptor is needed. It also closes the Conn that the
// transport has built on it. It does nothing if the slot was released after the connection was
// chosen.
func (f *mux) evict(g *pendingConn, why error) {
	if f.refuse(g, why.Error()) {
		g.closeConn()
	}
}

// release frees the slot of a connection. It returns false when the slot was freed before, so that
// exactly one caller logs or admits.
func (f *mux) release(g *pendingConn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, held := f.pending[g]
	delete(f.pending, g)
	if held {
		close(g.released)
		f.slotFree.raise()
	}
	return held
}

// classify finds out which protocol a connection speaks, and passes it on. The connection's timer
// ends it after handshakeTimeout at the latest.
func (f *mux) classify(g *pendingConn) {
	if err := f.sniff(g); err != nil {
		if len(g.peeked) == 0 && errors.Is(err, io.EOF) && g.drop() {
			return // a port scan or a health check, which is not logged
		}
		f.refuse(g, err.Error())
		return
	}
	select {
	case f.accepted <- g:
	case <-f.done:
		g.drop()
	case <-g.released: // evicted, or expired
	}
}

// needsTLS reports whether a connection must be under TLS.
func (f *mux) needsTLS(nc net.Conn) bool {
	return f.tls != nil && (f.secures == nil || f.secures(nc.LocalAddr(), nc.RemoteAddr()))
}

// sniff reads a connection's first bytes, and does the TLS handshake where needsTLS requires it.
//
//	first bytes          connection without TLS   connection with TLS
//	TLS                  refused                  TLS handshake; the protocol is checked by ALPN
//	the transport's      passed on                refused
//	anything else        refused                  refused
//
// It reads at least minPeek and at most maxPeek bytes. The next reads of the connection return
// these bytes again. A rank sends its first bytes as soon as it is connected, so they must come
// within greetTimeout.
func (f *mux) sniff(g *pendingConn) error {
	buf := make([]byte, maxPeek)
	g.Conn.SetReadDeadline(time.Now().Add(greetTimeout))
	n, err := io.ReadAtLeast(g.Conn, buf, minPeek)
	g.Conn.SetReadDeadline(g.deadline)
	g.peeked = buf[:n]
	g.prefix = g.peeked
	switch needed, secure := f.needsTLS(g.Conn), n > 0 && buf[0] == tlsRecord; {
	case isTimeout(err):
		return fmt.Errorf("first %v of the connection: got %d bytes, want at least %d", greetTimeout, n, minPeek)
	case err != nil:
		return fmt.Errorf("the peer closed the connection after %d bytes: %w", n, err)
	case !needed && secure:
		return errors.New("got a TLS handshake, want a connection without TLS: set the same TLS options on all ranks")
	case needed && !secure:
		return fmt.Errorf("got no TLS handshake, want one: set the same TLS options on all ranks; the peer's first bytes are %q", g.peeked)
	case needed:
		return f.startTLS(g)
	case f.greeter != nil && !f.greeter.Prefix(g.peeked):
		return fmt.Errorf("the peer does not speak this transport's protocol: its first bytes are %q", g.peeked)
	}
	return nil
}

// isTimeout reports whether err says that a deadline has passed.
func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// startTLS does the TLS handshake within the connection's deadline. From then on the connection
// reads and writes through TLS. Peeked returns no bytes, because the peeked bytes belong to the TLS
// handshake.
func (f *mux) startTLS(g *pendingConn) error {
	g.peeked = nil
	f.beginTLS(g)
	tc := tls.Server(&swappable{&g.prefixedConn}, f.tls)
	if err := tc.Handshake(); err != nil {
		var cert *tls.CertificateVerificationError
		if errors.As(err, &cert) {
			f.awaitAlertRead(g)
		}
		return fmt.Errorf("TLS: %w", err)
	}
	if f.greeter != nil && tc.ConnectionState().NegotiatedProtocol != f.greeter.Proto() {
		return fmt.Errorf("TLS: got protocol %q from the peer, want %q", tc.ConnectionState().NegotiatedProtocol, f.greeter.Proto())
	}
	g.tls = tc
	return nil
}

// awaitAlertRead waits until a peer has read why its certificate was refused, and has closed the
// connection, for at most refusalTimeout. The peer has sent its hello by then. If these bytes were
// unread when the connection is closed, the kernel would discard the alert, and the peer would not
// learn the reason.
func (f *mux) awaitAlertRead(g *pendingConn) {
	g.Conn.SetReadDeadline(time.Now().Add(refusalTimeout))
	io.Copy(io.Discard, io.LimitReader(g.Conn, maxBody))
}

// refuse closes a connection and logs why, in at most one line. It does nothing and returns false
// if the slot was released before.
func (f *mux) refuse(g *pendingConn, why string) bool {
	if !g.drop() {
		return false
	}
	f.refusals.Refused(g.RemoteAddr(), why)
	return true
}

// A muxListener is the net.Listener that the mux gives to the transport. Its connections implement
// transport.Pending.
type muxListener struct {
	*mux
	addr       net.Addr
	once       sync.Once
	acceptDone chan struct{} // closed by Close; ends Accept and nothing else
}

// listener returns a muxListener that reports addr as its address.
func (f *mux) listener(addr net.Addr) *muxListener {
	return &muxListener{mux: f, addr: addr, acceptDone: make(chan struct{})}
}

// Accept returns the next classified connection.
func (d *muxListener) Accept() (net.Conn, error) {
	select {
	case nc := <-d.accepted:
		return nc, nil
	case <-d.acceptDone:
	case <-d.done:
	}
	return nil, net.ErrClosed
}

// Close ends Accept only; the Mesh closes the mux.
func (d *muxListener) Close() error {
	d.once.Do(func() { close(d.acceptDone) })
	return nil
}

// Addr returns the address under which other ranks reach the listener.
func (d *muxListener) Addr() net.Addr { return d.addr }

// A pendingConn is an accepted connection whose peer has proven nothing yet. It implements
// transport.Pending. Read starts at the connection's first byte, and returns the peeked bytes
// first. Instead of calling Read, a transport may take the peeked bytes from Peeked and read the
// rest from NetConn.
//
//	slot      closer  state
//	held      nil     the mux classifies it, or the transport reads it; Close logs a refusal
//	held      set     the handshake runs on the transport's Conn, and logs its own refusal
//	released  any     admitted, or closed
type pendingConn struct {
	prefixedConn     // as accepted
	mux              *mux
	tls              *tls.Conn // TLS over Conn; nil without TLS
	source           netip.Prefix
	deadline         time.Time
	notEvictedBefore time.Time     // the connection is not evicted before this time; guarded by mux.mu
	released         chan struct{} // closed by release
	timer            *time.Timer   // runs expire at deadline
	closer           func() error  // closes the transport's Conn; guarded by mux.mu
	peeked           []byte        // what sniff has read; nil under TLS
}

// Peeked returns the bytes that were already read, at most 32. Under TLS it returns none.
func (g *pendingConn) Peeked() []byte { return g.peeked }

// NetConn returns the connection that the transport uses: with TLS the *tls.Conn, and otherwise the
// accepted connection. The bytes of Peeked have already been read from it.
func (g *pendingConn) NetConn() net.Conn {
	if g.tls != nil {
		return g.tls
	}
	return g.Conn
}

// Admit frees the slot and removes the deadline, because the peer has proven that it belongs to the
// job. The handshake calls it before it sends the welcome.
func (g *pendingConn) Admit() {
	if g.mux.release(g) {
		g.timer.Stop()
		g.Conn.SetDeadline(time.Time{})
	}
}

// Close closes the connection. The transport calls it in two cases: it closes the Conn that it has
// built on this connection, or it failed to build a Conn. In the second case the transport does not
// log the reason, so Close logs it.
func (g *pendingConn) Close() error {
	g.mux.mu.Lock()
	unsaid := g.closer == nil && !g.mux.closed
	g.mux.mu.Unlock()
	why := errors.New("the peer closed the connection, or sent malformed bytes, before it had proven its identity")
	if time.Until(g.deadline) < 100*time.Millisecond {
		why = errNotAuthenticated // the transport's own time limit has ended the handshake just
		// before g.deadline
	}
	if g.drop() && unsaid {
		g.mux.refusals.Refused(g.RemoteAddr(), why.Error())
	}
	g.Conn.Close() // under TLS, the transport may have replaced the connection that NetConn closes
	return g.NetConn().Close()
}

// drop closes the accepted connection and frees its slot. It does nothing and returns false if the
// slot was released before: Admit has passed the connection to the transport, or another call of
// drop closes it.
func (g *pendingConn) drop() bool {
	if !g.mux.release(g) {
		return false
	}
	g.timer.Stop()
	g.Conn.Close()
	return true
}

// SetCloser records the function that closes the Conn that the transport builds on this connection.
// The Conn may have a file descriptor of its own, which closing the accepted connection would leave
// open. After SetCloser the handshake, not the mux, logs why a connection is refused.
func (g *pendingConn) SetCloser(end func() error) {
	g.mux.mu.Lock()
	defer g.mux.mu.Unlock()
	g.closer = end
}

// expire closes a connection that was not admitted in time. It does nothing if Admit was called
// just before the deadline.
func (g *pendingConn) expire() {
	if g.mux.refuse(g, errNotAuthenticated.Error()) {
		g.closeConn()
	}
}

// closeConn closes the Conn that the transport has built on the connection. It is needed because
// the deadline and the close of the accepted connection may have no effect on that Conn.
func (g *pendingConn) closeConn() {
	g.mux.mu.Lock()
	end := g.closer
	g.mux.mu.Unlock()
	if end != nil {
		end()
	}
}

// Read reads through TLS if there is TLS. Otherwise it reads from the connection, the peeked bytes
// first. Only one goroutine may read at a time.
func (g *pendingConn) Read(b []byte) (int, error) {
	if g.tls != nil {
		return g.tls.Read(b)
	}
	return g.prefixedConn.Read(b)
}

// Write writes through TLS where there is TLS.
func (g *pendingConn) Write(b []byte) (int, error) { return g.NetConn().Write(b) }

// A swappable is the connection below TLS. A transport calls SetConn to replace the connection that
// TLS reads and writes. It does so before any goroutine reads or writes.
type swappable struct{ net.Conn }

// SetConn replaces the connection.
func (s *swappable) SetConn(nc net.Conn) { s.Conn = nc }

// NetConn returns the connection that TLS reads and writes.
func (s *swappable) NetConn() net.Conn { return s.Conn }

// NetConn returns the connection below, from which the prefix has already been read.
func (r *prefixedConn) NetConn() net.Conn { return r.Conn }

// A prefixedConn is a connection whose first bytes were already read. Its Read returns these bytes
// again.
type prefixedConn struct {
	net.Conn
	prefix []byte
}

// Read returns the prefix first.
func (r *prefixedConn) Read(b []byte) (int, error) {
	if len(r.prefix) > 0 {
		n := copy(b, r.prefix)
		r.prefix = r.prefix[n:]
		return n, nil
	}
	return r.Conn.Read(b)
}
