//go:build unix

package agent

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/tutti-go/tutti/internal/pending"
)

// The bounds on unauthenticated connections. A connection is protected from eviction for slotHold.
// That covers a handshake: one round trip, and the delay until each of two busy hosts runs its
// process.
const (
	pendingSlots     = 64
	handshakeTimeout = 5 * time.Second
	slotHold         = 500 * time.Millisecond
)

// endTimeout is how long a process may run after its input has ended. It is also how long the
// launcher may take to read the last bytes.
const endTimeout = 3 * time.Second

// stuckTimeout is the time after which a process that does not read its input is killed. While the
// agent waits for such a process, it does not see that the launcher has gone.
const stuckTimeout = 15 * time.Second

// cutTimeout is how long a launcher's host may acknowledge nothing before it counts as cut off.
// TCP's keep-alive does not detect this, because it sends nothing while written bytes wait for
// their acknowledgement. cutTimeout is as long as the limit of keepAlive.
const cutTimeout = 15 * time.Second

// limits are slotHold, endTimeout, stuckTimeout and cutTimeout. Tests shorten them.
type limits struct{ hold, end, stuck, cut time.Duration }

// An Agent accepts launchers and starts processes for them.
//
// A connection passes through these states, in order, and may end in each:
//
//	state    in        ended by
//	pending  pending   handshakeTimeout; eviction, after slotHold; its verb, with which it leaves
//	job      jobs      the process; the launcher; End
type Agent struct {
	program string              // what the processes run
	verbs   map[string][]string // the arguments of the program for each verb
	maxJobs int
	config  *tls.Config
	log     *slog.Logger
	refused *pending.Log
	limits  limits

	work     sync.WaitGroup // one per connection
	slotFree chan struct{}  // holds a token after a pending connection has gone

	mu       sync.Mutex // guards the rest
	ln       net.Listener
	draining chan struct{} // closed by Drain
	pending  map[*pendingConn]struct{}
	jobs     map[*job]struct{}
}

// A pendingConn is a connection whose peer has not sent a verb, and may not even be authenticated.
type pendingConn struct {
	net.Conn
	source    netip.Prefix
	safeUntil time.Time // the connection is not evicted before this time
}

// New returns an Agent that authenticates launchers by config. For a launcher's verb, it runs
// program with the arguments in verbs. At most maxJobs processes run at once.
func New(config *tls.Config, program string, verbs map[string][]string, maxJobs int, log *slog.Logger) *Agent {
	return &Agent{
		program: program, verbs: verbs, maxJobs: maxJobs, config: config, log: log, refused: pending.NewLog(log), limits: limits{slotHold, endTimeout, stuckTimeout, cutTimeout},
		slotFree: make(chan struct{}, 1), draining: make(chan struct{}),
		pending: make(map[*pendingConn]struct{}), jobs: make(map[*job]struct{}),
	}
}

// Serve accepts launchers on ln until Drain or End. It returns when all processes have ended.
func (a *Agent) Serve(ln net.Listener) {
	a.mu.Lock()
	a.ln = ln
	a.mu.Unlock()
	defer a.work.Wait()
	defer ln.Close()
	pause := time.Millisecond
	for !a.isDraining() {
		nc, err := ln.Accept()
		switch {
		case err == nil:
			pause = time.Millisecond
			if p := a.reserve(nc); p != nil {
				a.work.Go(func() { a.handle(p) })
			} else {
				nc.Close()
			}
		case a.isDraining() || errors.Is(err, net.ErrClosed):
			return
		default:
			// A lack of descriptors or memory may be temporary.
			a.refused.AcceptFailed(err)
			select {
			case <-time.After(pause):
				pause = min(2*pause, time.Second)
			case <-a.draining:
			}
		}
	}
}

// Drain makes Serve accept no more launchers. Running processes continue.
func (a *Agent) Drain() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.isDraining() {
		close(a.draining)
	}
	if a.ln != nil {
		a.ln.Close()
	}
	for p := range a.pending {
		p.Close()
	}
}

// End ends all processes, as if their launchers had gone. It includes Drain.
func (a *Agent) End() {
	a.Drain()
	a.mu.Lock()
	defer a.mu.Unlock()
	for j := range a.jobs {
		j.conn.NetConn().Close()
	}
}

// isDraining reports whether Drain has been called.
func (a *Agent) isDraining() bool {
	select {
	case <-a.draining:
		return true
	default:
		return false
	}
}

// reserve gives a connection a slot. When all slots are taken, it waits until a slot is free, or
// until a connection may be evicted. Meanwhile, other connections wait in the listener's queue. A
// few sources could fill that queue, and keep launchers from elsewhere behind it. So reserve never
// waits on behalf of a connection whose source has a slot already, but returns nil at once; a
// launcher dials again. It also returns nil after Drain.
func (a *Agent) reserve(nc net.Conn) *pendingConn {
	for {
		p, victim, wait, err := a.tryReserve(nc)
		switch {
		case err != nil:
			a.refused.Refused(nc.RemoteAddr(), err.Error())
			return nil
		case p != nil || victim == nil:
			return p
		case wait <= 0:
			if a.release(victim) {
				victim.Close()
			}
			continue
		}
		select {
		case <-a.slotFree:
		case <-time.After(wait):
		case <-a.draining:
		}
	}
}

// tryReserve gives a connection a slot if one is free. Otherwise it returns the connection to
// evict as victim, and how long victim is still protected from eviction. If victim is still
// protected, and the source of nc has a slot already, the error is errShare. After Drain, all
// results are zero.
func (a *Agent) tryReserve(nc net.Conn) (p, victim *pendingConn, wait time.Duration, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, source := time.Now(), pending.Source(nc.RemoteAddr())
	if a.isDraining() {
		return nil, nil, 0, nil
	}
	if len(a.pending) >= pendingSlots {
		victim = pending.Victim(maps.Keys(a.pending), func(p *pendingConn) (netip.Prefix, time.Time) { return p.source, p.safeUntil })
		if wait = victim.safeUntil.Sub(now); wait > 0 && a.hasSlot(source) {
			err = errShare
		}
		return nil, victim, wait, err
	}
	p = &pendingConn{Conn: nc, source: source, safeUntil: now.Add(a.limits.hold)}
	nc.SetDeadline(now.Add(handshakeTimeout))
	a.pending[p] = struct{}{}
	return p, nil, 0, nil
}

// hasSlot reports whether a connection from a source has a slot. The caller holds a.mu.
func (a *Agent) hasSlot(source netip.Prefix) bool {
	for p := range a.pending {
		if p.source == source {
			return true
		}
	}
	return false
}

// release frees the slot of a connection. It returns false if the slot has been freed before. So a
// connection that was evicted begins no job, and a connection that has begun a job cannot be
// evicted.
func (a *Agent) release(p *pendingConn) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, held := a.pending[p]
	delete(a.pending, p)
	select {
	case a.slotFree <- struct{}{}:
	default:
	}
	return held
}

// errEvicted is the refusal of an unauthenticated peer whose slot another connection has taken.
var errEvicted = fmt.Errorf("the peer has not proven its identity, and other connections wait for one of the %d slots", pendingSlots)

// errShare is the refusal of a connection whose source has a slot already.
var errShare = fmt.Errorf("the %d slots are taken, and another connection from this address has one of them", pendingSlots)

// handle serves one connection until it ends.
func (a *Agent) handle(p *pendingConn) {
	defer p.Close()
	conn, verb, err := a.receive(p)
	if !a.release(p) {
		err = errEvicted
	}
	if err != nil {
		// A port scan or a health check sends nothing, and is not logged.
		if !errors.Is(err, io.EOF) {
			a.refused.Refused(p.RemoteAddr(), err.Error())
		}
		return
	}
	conn.SetDeadline(time.Time{})
	j, err := a.begin(conn, verb)
	if err != nil {
		a.log.Warn("a launcher refused", "name", nameOf(conn), "from", conn.RemoteAddr(), "verb", verb, "because", err)
		conn.SetDeadline(time.Now().Add(endTimeout))
		if writeText(conn, err.Error()) == nil {
			awaitClose(conn)
		}
		return
	}
	j.run()
	a.mu.Lock()
	delete(a.jobs, j)
	a.mu.Unlock()
}

// receive performs the handshake and reads the verb.
func (a *Agent) receive(p *pendingConn) (*tls.Conn, string, error) {
	conn := tls.Server(p.Conn, a.config)
	if err := conn.Handshake(); err != nil {
		// The launcher's verb may be unread. Closing a connection with unread bytes resets it, which
		// would discard the alert that gives the reason.
		awaitClose(p.Conn)
		return nil, "", err
	}
	// crypto/tls accepts a peer that offers no ALPN name.
	if conn.ConnectionState().NegotiatedProtocol != proto {
		return nil, "", fmt.Errorf("got a launcher that names no protocol, want %s", proto)
	}
	a.mu.Lock()
	p.safeUntil = time.Now().Add(handshakeTimeout) // the connection is authenticated
	a.mu.Unlock()
	verb, err := readText(conn)
	return conn, verb, err
}

// awaitClose ends the sending direction, and waits until the peer has closed the connection or its
// deadline has passed. It reads at most one TLS record.
func awaitClose(nc net.Conn) {
	if w, ok := nc.(interface{ CloseWrite() error }); ok {
		w.CloseWrite()
	}
	io.Copy(io.Discard, io.LimitReader(nc, 16<<10))
}

// nameOf returns the name in a launcher's certificate.
func nameOf(conn *tls.Conn) string {
	cert := conn.ConnectionState().PeerCertificates[0]
	if name := cert.Subject.String(); name != "" {
		return name
	}
	return fmt.Sprint(cert.URIs, cert.DNSNames)
}

// begin starts the process of a job. Its error is sent to the launcher.
func (a *Agent) begin(conn *tls.Conn, verb string) (*job, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	args, ok := a.verbs[verb]
	switch {
	case !ok:
		return nil, fmt.Errorf("the agent does not know verb %.20q; run the same version of tuttirun on both hosts", verb)
	case a.isDraining():
		return nil, errors.New("the agent accepts no more jobs, because it has been asked to end")
	case len(a.jobs) >= a.maxJobs:
		return nil, fmt.Errorf("the agent runs %d jobs, as many as its --max-jobs allows", a.maxJobs)
	}
	j := &job{agent: a, conn: conn, begun: time.Now()}
	if err := j.start(args); err != nil {
		return nil, fmt.Errorf("the agent cannot start a process: %w", err)
	}
	j.log = a.log.With("process", j.cmd.Process.Pid)
	j.log.Info("a job begins", "verb", verb, "name", nameOf(conn), "from", conn.RemoteAddr())
	a.jobs[j] = struct{}{}
	return j, nil
}
