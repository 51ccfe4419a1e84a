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

// Name is the word that selects this transport.
const Name = "tcp"

// proto is the ALPN name of this transport's connections under TLS.
const proto = "tutti/1"

// TLS says how TLS is done.
type TLS = tlsopt.Options

// Options are the choices that a program has. The zero Options are good ones.
type Options struct {
	// TLS, when not nil, is asked for on every connection, dialled or accepted.
	TLS *TLS
	// ReceiveBuffer is the socket buffer, in bytes, for what an admitted peer
	// sends. 0: what the system does by itself, but beginning at 4 MiB, so that a
	// first large message is not slower than the next. Negative: what the system
	// does by itself. Positive: that much, where the system permits it; the system
	// then does not adapt it any more. It is for Linux without TLS; elsewhere the
	// system does what it does.
	ReceiveBuffer int
}

// A Transport makes Conns over TCP. It implements transport.Transport and
// transport.Greeter; all its methods may be called concurrently.
type Transport struct {
	options Options
	life    context.Context // ends with Close
	end     context.CancelFunc
	calls   poll.Caller
	watcher poll.Watcher
	open    sync.WaitGroup // what Close waits for: the accept loop, each Conn, their goroutines

	mu     sync.Mutex // guards what follows
	conns  map[transport.Conn]struct{}
	in     net.Listener
	closed bool
}

// New is a Transport that holds nothing yet. Once it has served or dialled, it
// needs a Close.
func New(o Options) *Transport {
	t := &Transport{options: o, conns: make(map[transport.Conn]struct{})}
	t.life, t.end = context.WithCancel(context.Background())
	return t
}

// ForRank returns a new Transport like t. TLS that t has been given stays.
func (t *Transport) ForRank(_ int, tls *tlsopt.Options, _ *slog.Logger) (transport.Transport, error) {
	o := t.options
	if o.TLS == nil {
		o.TLS = tls
	}
	return New(o), nil
}

// Name is "tcp".
func (t *Transport) Name() string { return Name }

// Prefix reports whether a connection opened with this transport's magic.
func (t *Transport) Prefix(first []byte) bool {
	return len(first) >= len(magic) && string(first[:len(magic)]) == magic
}

// Proto is "tutti/1".
func (t *Transport) Proto() string { return proto }

// keepAlive is for every connection. Keep-alives serve the boxes between two hosts, which
// forget idle connections; peers' deaths are noticed above, and sooner. There is
// no TCP_USER_TIMEOUT: it would also end connections whose peer just does not
// receive for a while, which is no fault.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 10 * time.Second, Count: 6}

// Dial opens a connection to a "host:port", with its TLS handshake, and returns
// it once the peer's system has taken it. Errors: fault.Timeout and
// fault.Canceled by ctx, fault.Refused by a TLS handshake, fault.Misuse by bad
// TLS options and by the address of another transport, fault.Closed after Close,
// else fault.LinkLost.
func (t *Transport) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.life, cancel)()

	op := "dial " + addr
	if strings.Contains(addr, "=") { // of transport auto: no name to ask a resolver for, and trying again is in vain
		return nil, failure(fault.Misuse, op, errors.New("got the address of another transport, want host:port: set TUTTI_TRANSPORT or WithTransportName to the same on all ranks"))
	}
	d := net.Dialer{KeepAliveConfig: keepAlive}
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, t.dialFailure(ctx, op, fault.LinkLost, err)
	}
	if t.options.TLS != nil {
		if nc, err = t.clientTLS(ctx, nc, addr); err != nil {
			return nil, t.dialFailure(ctx, op, fault.Refused, err)
		}
	}
	// Four bytes always fit into a socket that nothing was written to.
	if _, err := nc.Write([]byte(magic)); err != nil {
		nc.Close()
		return nil, t.dialFailure(ctx, op, fault.LinkLost, err)
	}
	return t.newConn(pendingConn{nc: nc})
}

// clientTLS does the handshake of the side that dials. It closes nc on failure. A
// peer that offers other ALPN names than ours refuses us; one that offers none,
// as a proxy that ends TLS, is told who we are by the magic.
func (t *Transport) clientTLS(ctx context.Context, nc net.Conn, addr string) (net.Conn, error) {
	cfg, err := t.options.TLS.Client(proto)
	if err != nil {
		nc.Close()
		return nil, err
	}
	if cfg.ServerName == "" {
		cfg.ServerName, _, _ = net.SplitHostPort(addr)
	}
	tc := tls.Client(nc, cfg)
	if err := tc.HandshakeContext(ctx); err != nil {
		nc.Close()
		return nil, err
	}
	return tc, nil
}

// dialFailure names what ended a dial: ctx, Close, or else kind.
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

// Close ends every Conn made here and waits until each has let go of its
// descriptor, and until the accept or ready call that is running has returned.
// It must not be called from those, nor from a Sink.
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

// register takes c among the Conns that Close ends; false when it is too late.
// Each enlisted Conn is let go by release.
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

// unregister forgets a Conn that holds nothing any more.
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
