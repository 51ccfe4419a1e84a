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
	strangerSlots = 64
	strangerTime  = 5 * time.Second
	peekMost      = 32 // bytes read to tell whose a connection is
	peekLeast     = 4  // bytes that transport.Greeter.Prefix wants
	tlsRecord     = 0x16
)

var errUnproven = fmt.Errorf("it has not proven who it is within %v", strangerTime)

// A front is this process's one listener. It looks at the first bytes of every
// connection and hands those that are the transport's on to it, as guests.
type front struct {
	ln     net.Listener
	whose  transport.Greeter // nil: everything is the transport's
	tls    *tls.Config       // nil: plain connections
	log    *slog.Logger
	handed chan net.Conn
	done   chan struct{} // closed by Close
	work   sync.WaitGroup

	mu      sync.Mutex // guards the rest
	guests  map[*guest]struct{}
	closed  bool
	dropped int       // connections closed for want of a slot, not logged yet
	logged  time.Time // when that was logged last
}

// openFront starts accepting on ln. Close ends it and closes ln.
func openFront(ln net.Listener, tr transport.Transport, conf *tls.Config, log *slog.Logger) *front {
	f := &front{
		ln: ln, log: log,
		handed: make(chan net.Conn),
		done:   make(chan struct{}),
		guests: make(map[*guest]struct{}),
	}
	f.whose, _ = tr.(transport.Greeter)
	if conf != nil {
		f.tls = conf.Clone()
		if f.whose != nil {
			f.tls.NextProtos = []string{f.whose.Proto()}
		}
	}
	f.work.Go(f.acceptAll)
	return f
}

// Close ends everything that has not been admitted, and waits for it.
func (f *front) Close() {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		f.work.Wait()
		return
	}
	f.closed = true
	left := make([]*guest, 0, len(f.guests))
	for g := range f.guests {
		left = append(left, g)
	}
	f.mu.Unlock()
	close(f.done)
	f.ln.Close()
	for _, g := range left {
		g.end()
	}
	f.work.Wait()
}

// acceptAll gives each connection a slot and a goroutine, or closes it.
func (f *front) acceptAll() {
	pause := time.Millisecond
	for {
		nc, err := f.ln.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// A lack of descriptors or memory may pass.
			f.log.Warn("the listener fails", "err", err)
			select {
			case <-f.done:
				return
			case <-time.After(pause):
				pause = min(2*pause, time.Second)
			}
			continue
		}
		pause = time.Millisecond
		if g := f.enter(nc); g != nil {
			f.work.Go(func() { f.look(g) })
		} else {
			nc.Close()
		}
	}
}

// enter takes a slot; nil when there is none.
func (f *front) enter(nc net.Conn) *guest {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	if len(f.guests) >= strangerSlots {
		f.turnAway()
		return nil
	}
	g := &guest{Conn: nc, front: f, deadline: time.Now().Add(strangerTime)}
	nc.SetDeadline(g.deadline)
	g.timer = time.AfterFunc(strangerTime, g.expire)
	f.guests[g] = struct{}{}
	return g
}

// turnAway logs, once a second at most, how many found no slot. f.mu is held.
func (f *front) turnAway() {
	f.dropped++
	if now := time.Now(); now.Sub(f.logged) >= time.Second {
		f.log.Warn("connections closed unheard: too many have not proven yet who they are",
			"closed", f.dropped, "slots", strangerSlots)
		f.logged, f.dropped = now, 0
	}
}

// leave gives a guest's slot back; false when it was given back before.
func (f *front) leave(g *guest) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, held := f.guests[g]
	delete(f.guests, g)
	return held
}

// look finds out whose a connection is, and hands it on. It ends within
// strangerTime, by the deadline.
func (f *front) look(g *guest) {
	if err := f.recognise(g); err != nil {
		if len(g.peeked) == 0 && errors.Is(err, io.EOF) && g.end() {
			return // it looked whether the port is open
		}
		f.refuse(g, err.Error())
		return
	}
	select {
	case f.handed <- g:
	case <-f.done:
		g.end()
	case <-time.After(time.Until(g.deadline)):
		f.refuse(g, "the transport does not accept it")
	}
}

// recognise reads a connection's first bytes, or does its TLS handshake.
func (f *front) recognise(g *guest) error {
	buf := make([]byte, peekMost)
	n, err := io.ReadAtLeast(g.Conn, buf, peekLeast)
	g.peeked = buf[:n]
	g.rest = g.peeked
	switch secure := n > 0 && buf[0] == tlsRecord; {
	case isTimeout(err):
		return errUnproven
	case err != nil:
		return fmt.Errorf("it left after %d bytes: %w", n, err)
	case f.tls == nil && secure:
		return errors.New("it speaks TLS, and this port does not")
	case f.tls != nil && !secure:
		return fmt.Errorf("it does not speak TLS, which this port asks for; it began with %q", g.peeked)
	case f.tls != nil:
		return f.secure(g)
	case f.whose != nil && !f.whose.Prefix(g.peeked):
		return fmt.Errorf("it is none of ours: it began with %q", g.peeked)
	}
	return nil
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// secure does the TLS handshake, and puts the TLS connection in the guest's place.
func (f *front) secure(g *guest) error {
	tc := tls.Server(&replay{Conn: g.Conn, rest: g.peeked}, f.tls)
	g.peeked, g.rest = nil, nil
	if err := tc.Handshake(); err != nil {
		return fmt.Errorf("TLS: %w", err)
	}
	if f.whose != nil && tc.ConnectionState().NegotiatedProtocol != f.whose.Proto() {
		return fmt.Errorf("TLS: it asks for the protocol %q, not %q", tc.ConnectionState().NegotiatedProtocol, f.whose.Proto())
	}
	g.within = tc
	return nil
}

// refuse closes a guest and says why, in one line.
func (f *front) refuse(g *guest, why string) {
	if g.end() {
		f.log.Warn("a connection refused", "from", g.RemoteAddr(), "because", why)
	}
}

// door is the front as the transport sees it: a listener of guests.
type door struct {
	*front
	addr net.Addr
	once sync.Once
	shut chan struct{}
}

func (f *front) door(addr net.Addr) *door {
	return &door{front: f, addr: addr, shut: make(chan struct{})}
}

func (d *door) Accept() (net.Conn, error) {
	select {
	case nc := <-d.handed:
		return nc, nil
	case <-d.shut:
	case <-d.done:
	}
	return nil, net.ErrClosed
}

// Close ends Accept only; the Mesh closes the front.
func (d *door) Close() error {
	d.once.Do(func() { close(d.shut) })
	return nil
}

func (d *door) Addr() net.Addr { return d.addr }

// A guest is an accepted connection whose peer has proven nothing yet. It reads
// as if nobody had looked at it. The transport may instead take Peeked and go on
// with NetConn.
type guest struct {
	net.Conn // as accepted
	front    *front
	within   *tls.Conn // TLS over Conn; nil without
	deadline time.Time
	timer    *time.Timer
	bound    func() error // guarded by front.mu
	peeked   []byte
	rest     []byte // of peeked, for Read; one reader at a time, as ever
}

// Peeked is what was read already, at most 32 bytes; none under TLS.
func (g *guest) Peeked() []byte { return g.peeked }

// NetConn is what Peeked was read from: the accepted connection, or its *tls.Conn.
func (g *guest) NetConn() net.Conn {
	if g.within != nil {
		return g.within
	}
	return g.Conn
}

// Admit says that the peer belongs to the job. The slot is free again, and the
// connection may stay.
func (g *guest) Admit() {
	if g.front.leave(g) {
		g.timer.Stop()
		g.Conn.SetDeadline(time.Time{})
	}
}

// Close ends the connection. It comes from the transport: when the Conn that it
// made of it is closed, or when it could make none.
func (g *guest) Close() error {
	g.front.mu.Lock()
	unsaid := g.bound == nil && !g.front.closed
	g.front.mu.Unlock()
	why := errors.New("it ended, or said what makes no sense, before it had proven who it is")
	if time.Until(g.deadline) < 100*time.Millisecond {
		why = errUnproven // the transport has a limit of its own
	}
	if g.end() && unsaid {
		g.front.log.Warn("a connection refused", "from", g.RemoteAddr(), "because", why)
	}
	return g.NetConn().Close()
}

// end closes the accepted connection and frees the slot; false when the guest
// held none any more.
func (g *guest) end() bool {
	held := g.front.leave(g)
	g.timer.Stop()
	g.Conn.Close()
	return held
}

// SetCloser says that the transport makes a Conn of the connection, and names what ends
// it: its descriptor may be another one then, and Close alone would end nothing.
// From then on the handshake says why the connection is refused.
func (g *guest) SetCloser(end func() error) {
	g.front.mu.Lock()
	defer g.front.mu.Unlock()
	g.bound = end
}

// expire ends a guest that has not been admitted in time.
func (g *guest) expire() {
	g.front.mu.Lock()
	end := g.bound
	g.front.mu.Unlock()
	g.front.refuse(g, errUnproven.Error())
	if end != nil {
		end()
	}
}

func (g *guest) Read(b []byte) (int, error) {
	if len(g.rest) > 0 {
		n := copy(b, g.rest)
		g.rest = g.rest[n:]
		return n, nil
	}
	return g.NetConn().Read(b)
}

func (g *guest) Write(b []byte) (int, error) { return g.NetConn().Write(b) }

// replay is a connection whose first bytes were read already.
type replay struct {
	net.Conn
	rest []byte
}

func (r *replay) Read(b []byte) (int, error) {
	if len(r.rest) > 0 {
		n := copy(b, r.rest)
		r.rest = r.rest[n:]
		return n, nil
	}
	return r.Conn.Read(b)
}
