package grpc

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/tlsopt"
	"github.com/tutti-go/tutti/transport"
)

// Name is the name that selects this transport.
const Name = "grpc"

// These bound how long a peer can make this end wait.
const (
	// defaultOpenTimeout is how long an accepted connection may take to open its stream.
	defaultOpenTimeout = 5 * time.Second
	// closeTime is how long gRPC may write the bytes that it holds after Close.
	closeTime = 250 * time.Millisecond
)

// Options configure a Transport. The zero value has no TLS and suits most programs.
type Options struct {
	// TLS secures the connections; nil: no TLS. A connection that the listener has secured already
	// is used as it is.
	TLS *tlsopt.Options
	// Dial opens the connection below gRPC; nil: net.Dialer. Unlike gRPC's own dialer it does not
	// use HTTP proxies of the environment, because ranks dial ranks.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Log gets a line for each unauthenticated peer that is refused; nil: none.
	Log *slog.Logger

	tune tuning // for measurements; zero value: the defaults
}

// A Transport makes Conns that are gRPC streams. It implements
// transport.Transport and transport.Greeter. All methods may be called
// concurrently.
//
// It holds no connection itself. Each Conn has its own connection, and its own instance of gRPC's
// client or server.
type Transport struct {
	opts        Options
	openTimeout time.Duration   // defaultOpenTimeout, except in tests
	ctx         context.Context // ends when Close begins
	stop        context.CancelFunc
	work        sync.WaitGroup // one for each Conn, and one for the accepting goroutine

	clientTLS func() (*tls.Config, error) // made once and shared; must not be modified

	mu     sync.Mutex // guards the rest
	in     net.Listener
	conns  map[*conn]struct{}
	closed bool
}

// New returns a Transport. It starts nothing and holds no resources.
func New(opts Options) *Transport {
	t := &Transport{opts: opts, openTimeout: defaultOpenTimeout, conns: make(map[*conn]struct{})}
	t.opts.tune = opts.tune.orDefault()
	t.ctx, t.stop = context.WithCancel(context.Background())
	t.clientTLS = sync.OnceValues(func() (*tls.Config, error) { return opts.TLS.Client(t.Proto()) })
	return t
}

// ForRank returns a new Transport like t for one rank. TLS options and a log of t take precedence.
func (t *Transport) ForRank(_ int, tls *tlsopt.Options, log *slog.Logger) (transport.Transport, error) {
	o := t.opts
	if o.TLS == nil {
		o.TLS = tls
	}
	if o.Log == nil {
		o.Log = log
	}
	return New(o), nil
}

// Name returns "grpc".
func (t *Transport) Name() string { return Name }

// Prefix reports whether a connection begins with the first bytes of HTTP/2's preface.
func (t *Transport) Prefix(first []byte) bool { return bytes.HasPrefix(first, []byte("PRI ")) }

// Proto returns the ALPN name of HTTP/2.
func (t *Transport) Proto() string { return "h2" }

// Serve accepts connections from in and returns the address of in. Close closes in. If a connection
// has a method Admit, Admit is called when its peer is authenticated. The listener bounds the
// number of unauthenticated peers. Errors are of kind fault.Misuse or fault.Closed.
func (t *Transport) Serve(in net.Listener, accept func(transport.Conn)) (string, error) {
	if in == nil || accept == nil {
		return "", failure(fault.Misuse, "serve", errors.New("got a nil listener or accept function, want both"))
	}
	config, err := t.serverTLS()
	if err != nil {
		return "", err
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
	t.work.Add(1)
	go t.acceptLoop(in, config, accept)
	return in.Addr().String(), nil
}

// serverTLS returns the configuration for accepted connections; nil without TLS.
func (t *Transport) serverTLS() (*tls.Config, error) {
	if t.opts.TLS == nil {
		return nil, nil
	}
	return t.opts.TLS.Server(t.Proto())
}

// acceptLoop serves each connection on its own goroutine. After a failed Accept, for example for
// lack of descriptors, it pauses and tries again.
func (t *Transport) acceptLoop(in net.Listener, config *tls.Config, accept func(transport.Conn)) {
	defer t.work.Done()
	for {
		raw, err := in.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || !t.pause(err) {
				return
			}
			continue
		}
		if !t.enter() {
			raw.Close()
			return
		}
		go func() {
			defer t.work.Done()
			t.serveConn(raw, config, accept)
		}()
	}
}

// pause waits a little after a failed Accept. It returns false if the Transport has closed.
func (t *Transport) pause(err error) bool {
	t.log("accept failed", err)
	timer := time.NewTimer(100 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-t.ctx.Done():
		return false
	}
}

// enter adds one goroutine for which Close waits. It returns false after Close has begun.
func (t *Transport) enter() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.work.Add(1)
	}
	return !t.closed
}

// register adds c to the Conns that Close ends. It returns false after Close has begun.
func (t *Transport) register(c *conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.conns[c] = struct{}{}
	}
	return !t.closed
}

// unregister removes a Conn whose resources are all released.
func (t *Transport) unregister(c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.conns, c)
}

// Close ends all Conns and waits for all goroutines. It takes at most about twice closeTime.
//
// The Conns are closed without mu, because their goroutines call unregister.
func (t *Transport) Close() error {
	t.mu.Lock()
	t.closed = true
	conns := make([]*conn, 0, len(t.conns))
	for c := range t.conns {
		conns = append(conns, c)
	}
	in := t.in
	t.mu.Unlock()
	t.stop()
	if in != nil {
		in.Close()
	}
	for _, c := range conns {
		c.Close()
	}
	t.work.Wait()
	return nil
}

// log writes the line about a peer that was refused.
func (t *Transport) log(what string, err error) {
	if t.opts.Log != nil {
		t.opts.Log.Warn(fmt.Sprintf("grpc: %s: %v", what, err))
	}
}

var (
	_ transport.Transport = (*Transport)(nil)
	_ transport.Greeter   = (*Transport)(nil)
)
