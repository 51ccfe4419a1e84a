// Package unixsock is a transport over Unix-domain sockets, for the ranks of one host. It is the
// worked example of docs/transports.md: small, portable, and built from the contract in package
// transport alone. Package transport/shm is the fast transport between processes of one host.
//
// Each rank listens on a socket file DIR/PORT.sock, where PORT is the port of the listener that the
// job gives it. The port belongs to this process while that listener is open, so no two ranks of a
// host share a file. A file that already exists was left by a process that has died.
//
// The package does not know who its peers are. Package mesh authenticates them, in frames.
package unixsock

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// A Transport makes Conns over Unix-domain sockets. Its methods may be called concurrently.
type Transport struct {
	dir string
	wg  sync.WaitGroup // every goroutine that the Transport and its Conns have started

	mu     sync.Mutex // guards what follows
	in     net.Listener
	listen net.Listener
	conns  map[*conn]bool
	closed bool
}

// New returns a Transport whose socket files lie in dir. All ranks of the job need the same
// directory. No other user should be able to write there.
func New(dir string) *Transport {
	return &Transport{dir: dir, conns: make(map[*conn]bool)}
}

// ForRank returns a new Transport for a rank. The job calls it for each rank of the process, and
// again after Rejoin.
func (t *Transport) ForRank(int) (transport.Transport, error) { return New(t.dir), nil }

// Name returns the name that selects this transport in TUTTI_TRANSPORT.
func (t *Transport) Name() string { return "unixsock" }

// Serve listens on the socket file for the port of the listener in. The returned address is that
// port.
func (t *Transport) Serve(in net.Listener, accept func(transport.Conn)) (string, error) {
	_, port, err := net.SplitHostPort(in.Addr().String())
	if err != nil {
		return "", fault.New(fault.Misuse, "serve", -1, "unixsock: got the listener %v, want one with a port", in.Addr())
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return "", errClosed("serve")
	}
	os.Remove(t.path(port)) // the file of a dead process, because the listener in holds the port now
	l, err := net.Listen("unix", t.path(port))
	if err != nil {
		return "", err
	}
	t.in, t.listen = in, l
	t.wg.Go(func() { t.acceptAll(l, accept) })
	return port, nil
}

// acceptAll passes each connection to accept until the listener is closed.
func (t *Transport) acceptAll(l net.Listener, accept func(transport.Conn)) {
	for {
		s, err := l.Accept()
		if err != nil {
			return
		}
		if c := t.add(s); c != nil {
			accept(c)
		}
	}
}

// Dial opens a Conn to an address that Serve returned, or to rank 0's host:port.
func (t *Transport) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	if _, port, err := net.SplitHostPort(addr); err == nil {
		addr = port
	}
	var d net.Dialer
	s, err := d.DialContext(ctx, "unix", t.path(addr))
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, &fault.Error{Kind: fault.ContextKind(ctx.Err()), Op: "dial", Rank: -1, Err: context.Cause(ctx)}
	case err != nil:
		return nil, lost(err)
	}
	if c := t.add(s); c != nil {
		return c, nil
	}
	return nil, errClosed("dial")
}

// path returns the socket file that a port names.
func (t *Transport) path(port string) string {
	return filepath.Join(t.dir, filepath.Base(port)+".sock")
}

// add makes s a Conn and starts its two loops. It returns nil after Close.
func (t *Transport) add(s net.Conn) *conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		s.Close()
		return nil
	}
	c := newConn(t, s)
	t.conns[c] = true
	t.wg.Go(c.readLoop)
	t.wg.Go(c.writeLoop)
	return c
}

// remove forgets a Conn that has been closed.
func (t *Transport) remove(c *conn) {
	t.mu.Lock()
	delete(t.conns, c)
	t.mu.Unlock()
}

// start runs f on a new goroutine. Close waits for that goroutine.
func (t *Transport) start(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		go f() // Close may not wait for this goroutine any more; f is short
		return
	}
	t.wg.Go(f)
}

// Close stops accepting, closes every Conn, and waits for all goroutines.
func (t *Transport) Close() error {
	t.mu.Lock()
	t.closed = true
	var open []*conn
	for c := range t.conns {
		open = append(open, c)
	}
	if t.listen != nil {
		t.listen.Close() // removes the socket file, too
		t.in.Close()
	}
	t.mu.Unlock()
	for _, c := range open {
		c.Close()
	}
	t.wg.Wait()
	return nil
}

func errClosed(op string) error {
	return fault.New(fault.Closed, op, -1, "unixsock: the transport is closed")
}
