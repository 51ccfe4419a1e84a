package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/poll"
	"github.com/tutti-go/tutti/internal/tlsopt"
	"github.com/tutti-go/tutti/transport"
)

// Name is the name that selects this transport.
const Name = "tcp"

// proto is the ALPN name of this transport's connections under TLS.
const proto = "tutti/1"

// TLS are the options for TLS.
type TLS = tlsopt.Options

// Options configure a Transport. The zero Options are good for most programs: no TLS, and buffers
// that the kernel adapts.
type Options struct {
	// TLS, if not nil, secures the dialled and accepted connections for which TLS.Secures
	// returns true.
	TLS *TLS
	// ReceiveBuffer is the size in bytes of the socket's receive buffer for an admitted peer, on
	// Linux. Elsewhere the system chooses.
	//
	//	0         the system adapts the buffer, from 4 MiB on, so that a first large message is fast
	//	positive  this size, where the system permits it; the system does not adapt it any more
	//	negative  the system's default
	ReceiveBuffer int
}

// A Transport makes Conns over TCP. It implements transport.Transport and transport.Greeter. All
// its methods may be called concurrently.
//
// All Conns share one watcher, which waits for their sockets, and one goroutine for callbacks. Both
// start with the first Conn that needs them and end with Close.
type Transport struct {
	options Options
	life    context.Context // ends with Close
	end     context.CancelFunc
	calls   poll.Caller
	watcher poll.Watcher
	// Close waits for open: the accept loop, each Conn, and the goroutines of each Conn.
	open sync.WaitGroup

	mu     sync.Mutex // guards the rest
	conns  map[transport.Conn]struct{}
	in     net.Listener
	closed bool
}

// New returns a Transport that holds no resources yet. After Serve or Dial it needs a Close.
func New(o Options) *Transport {
	t := &Transport{options: o, conns: make(map[transport.Conn]struct{})}
	t.life, t.end = context.WithCancel(context.Background())
	return t
}

// ForRank returns a new Transport like t for one rank. TLS options of t take precedence over tls.
func (t *Transport) ForRank(_ int, tls *tlsopt.Options, _ *slog.Logger) (transport.Transport, error) {
	o := t.options
	if o.TLS == nil {
		o.TLS = tls
	}
	return New(o), nil
}

// Name returns "tcp".
func (t *Transport) Name() string { return Name }

// Prefix reports whether a connection opened with this transport's magic.
func (t *Transport) Prefix(first []byte) bool {
	return len(first) >= len(magic) && string(first[:len(magic)]) == magic
}

// Proto returns "tutti/1".
func (t *Transport) Proto() string { return proto }

// keepAlive applies to every connection. NATs and firewalls between two hosts forget idle
// connections, and keepAlive prevents this. It does not serve to detect dead peers, because the
// layer above detects them sooner. TCP_USER_TIMEOUT is not set, because it would also end a
// connection whose peer does not receive for a while. Such a peer is no fault.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 10 * time.Second, Count: 6}

// Dial opens a connection to a "host:port", with its TLS handshake, and returns when the peer's
// kernel has accepted it. The kinds of its errors are fault.Timeout and fault.Canceled if ctx
// ended, fault.Refused if the TLS handshake failed, fault.Misuse for bad TLS options or an address
// of another transport, fault.Closed after Close, and fault.LinkLost in all other cases.
//
// The magic is written before the Conn exists. The listener's mux needs the magic to select the
// transport, and the accepting side's decoder checks it.
func (t *Transport) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.life, cancel)()

	op := "dial " + addr
	// An address of transport auto is no name to resolve. A retry would not help.
	if strings.Contains(addr, "=") {
		return nil, failure(fault.Misuse, op, errors.New("got the address of another transport, want host:port: set TUTTI_TRANSPORT or WithTransportName to the same on all ranks"))
	}
	d := net.Dialer{KeepAliveConfig: keepAlive}
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, t.dialFailure(ctx, op, fault.LinkLost, err)
	}
	if t.options.TLS.Secures(nc.LocalAddr(), nc.RemoteAddr()) {
		if nc, err = t.clientTLS(ctx, nc, addr); err != nil {
			return nil, t.dialFailure(ctx, op, fault.Refused, t.options.TLS.Explain(err))
		}
	}
	// Four bytes always fit into the buffer of a new socket.
	if _, err := nc.Write([]byte(magic)); err != nil {
		nc.Close()
		return nil, t.dialFailure(ctx, op, fault.LinkLost, err)
	}
	return t.newConn(pendingConn{nc: nc})
}

// clientTLS does the TLS handshake of the dialling side. It closes nc on failure. A peer that
// offers other ALPN names refuses the handshake. A peer that offers no ALPN name, such as a proxy
// that terminates TLS, learns the protocol from the magic.
func (t *Transport) clientTLS(ctx context.Context, nc net.Conn, addr string) (net.Conn, error) {
	cfg, err := t.options.TLS.Client(proto)
	if err != nil {
		nc.Close()
		return nil, err
	}
	if cfg.ServerName == "" {
		cfg.ServerName, _, _ = net.SplitHostPort(addr)
	}
	tc := tls.Client(&swappable{nc}, cfg)
	if err := tc.HandshakeContext(ctx); err != nil {
		nc.Close()
		return nil, err
	}
	return tc, nil
}

// dialFailure returns the error of a dial. If ctx or Close ended the dial, the kind of the error
// says so. Otherwise the error has the given kind.
func (t *Transport) dialFailure(ctx context.Context, op string, kind fault.Kind, err error) error {
	var ours *fault.Error
	switch {
	case errors.As(err, &ours):
		kind = ours.Kind
	case t.life.Err() != nil:
		kind = fault.Closed
	case errors.Is(ctx.Err(), context.DeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		kind = fault.Timeout
	case ctx.Err() != nil:
		kind = fault.Canceled
	}
	return failure(kind, op, err)
}

// Close ends every Conn of this Transport. It waits until each Conn has closed its descriptor, and
// until a running accept or ready callback has returned. So these callbacks and Sinks must not call
// it.
//
// The Conns are closed without mu, because a Conn's teardown calls unregister.
func (t *Transport) Close() error {
	t.mu.Lock()
	t.closed = true
	t.end()
	in := t.in
	open := make([]transport.Conn, 0, len(t.conns))
	for c := range t.conns {
		open = append(open, c)
	}
	t.mu.Unlock()
	if in != nil {
		in.Close()
	}
	for _, c := range open {
		c.Close()
	}
	t.open.Wait()
	t.watcher.Stop()
	t.calls.Stop()
	return nil
}

// register adds c to the Conns that Close ends. It returns false after Close. Each registered Conn
// calls unregister when it has released everything.
func (t *Transport) register(c transport.Conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.conns[c] = struct{}{}
	t.open.Add(1)
	return true
}

// unregister removes a Conn that holds nothing any more.
func (t *Transport) unregister(c transport.Conn) {
	t.mu.Lock()
	delete(t.conns, c)
	t.mu.Unlock()
	t.open.Done()
}

var (
	_ transport.Transport = (*Transport)(nil)
	_ transport.Greeter   = (*Transport)(nil)
)
