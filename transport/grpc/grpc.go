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

// Name is the word that selects this transport.
const Name = "grpc"

// Times that bound what a peer can make us wait for.
const (
	// defaultOpenTimeout is how long an accepted connection may take to open its stream.
	defaultOpenTimeout = 5 * time.Second
	// closeTime is how long after Close bytes that gRPC holds may still go out.
	closeTime = 250 * time.Millisecond
)

// Options says how a Transport works. The zero value is good: no TLS.
type Options struct {
	// TLS says how connections are secured; nil: not at all. A connection that
	// the listener has secured already is taken as it is.
	TLS *tlsopt.Options
	// Dial opens the connection below gRPC; nil: net.Dialer. HTTP proxies from
	// the environment are not asked, unlike gRPC's habit: ranks dial ranks.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Log hears of strangers that are turned away; nil: nobody does.
	Log *slog.Logger

	tune tuning // for measurements; zero: defaults
}

// A Transport makes Conns that are gRPC streams. It implements
// transport.Transport and transport.Greeter. All methods may be called
// concurrently.
type Transport struct {
	opts        Options
	openTimeout time.Duration   // openTime
	ctx         context.Context // ends when Close begins
	stop        context.CancelFunc
	work        sync.WaitGroup // one for each Conn, and one for the accepting goroutine

	clientTLS func() (*tls.Config, error) // made once; not to be changed

	mu     sync.Mutex // guards the rest
	in     net.Listener
	conns  map[*conn]struct{}
	closed bool
}

// New makes a Transport. It starts nothing.
func New(opts Options) *Transport {
	t := &Transport{opts: opts, openTimeout: defaultOpenTimeout, conns: make(map[*conn]struct{})}
	t.opts.tune = opts.tune.orDefault()
	t.ctx, t.stop = context.WithCancel(context.Background())
	t.clientTLS = sync.OnceValues(func() (*tls.Config, error) { return opts.TLS.Client(t.Proto()) })
	return t
}

// ForRank returns a new Transport like t. TLS and a log that t has been given stay.
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

// Name is "grpc".
func (t *Transport) Name() string { return Name }

// Prefix reports whether first begins HTTP/2's connection preface.
func (t *Transport) Prefix(first []byte) bool { return bytes.HasPrefix(first, []byte("PRI ")) }

// Proto is the ALPN name of HTTP/2.
func (t *Transport) Proto() string { return "h2" }

// Serve accepts from in, which Close closes, and returns its address. Connections
// that have a method Admit are told when their peer has proven itself. How many
// unproven peers there may be at a time is the listener's business. Errors are of
// kind fault.Misuse or fault.Closed.
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

func (t *Transport) serverTLS() (*tls.Config, error) {
	if t.opts.TLS == nil {
		return nil, nil
	}
	return t.opts.TLS.Server(t.Proto())
}

// acceptLoop gives each connection a goroutine of its own. A listener that is out
// of descriptors is asked again a little later.
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

// pause waits a little after a failed Accept; false: the Transport has closed.
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

// enter counts something that Close has to wait for; false: Close has begun.
func (t *Transport) enter() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.work.Add(1)
	}
	return !t.closed
}

// register has Close end c too; false: Close has begun.
func (t *Transport) register(c *conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.conns[c] = struct{}{}
	}
	return !t.closed
}

func (t *Transport) unregister(c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.conns, c)
}

// Close ends everything that was made here, and waits until it has. It takes
// at most about twice lingerTime.
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

// log tells of a peer that was turned away.
func (t *Transport) log(what string, err error) {
	if t.opts.Log != nil {
		t.opts.Log.Warn(fmt.Sprintf("grpc: %s: %v", what, err))
	}
}

var (
	_ transport.Transport = (*Transport)(nil)
	_ transport.Greeter   = (*Transport)(nil)
)
