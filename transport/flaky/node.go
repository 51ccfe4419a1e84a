package flaky

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// pairTimeout is how long a Dial waits for the other end's accept, so as to learn
// which Conns belong together. After it the Conn works, but leads to Unknown.
const pairTimeout = 2 * time.Second

// A node is a wrapped Transport; it implements transport.Transport.
type node struct {
	inner  transport.Transport
	script *Script
	number int
	death  *death

	dialSlot chan struct{}  // one slot: whose Dial is on its way to this node
	timers   sync.WaitGroup // delays under way

	mu   sync.Mutex   // guards caller
	dial *pendingDial // the Dial whose turn it is
}

// A pendingDial is a Dial that waits for the end that the other node accepts.
type pendingDial struct {
	near   *conn
	paired chan struct{} // closed when near and the accepted Conn know each other
}

// Wrap makes t a node of that number. It has the abilities of t.
func (s *Script) Wrap(t transport.Transport, number int) transport.Transport {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := &node{inner: t, script: s, number: number, death: s.deathOf(number), dialSlot: make(chan struct{}, 1)}
	return n
}

// Name is what is wrapped's.
func (n *node) Name() string { return n.inner.Name() }

// Serve serves as what is wrapped, and wraps each Conn that comes.
func (n *node) Serve(in net.Listener, accept func(transport.Conn)) (string, error) {
	addr, err := n.inner.Serve(in, func(inner transport.Conn) {
		c := n.newConn(inner, Unknown)
		n.pair(c)
		accept(c)
	})
	if err == nil {
		n.script.mu.Lock()
		defer n.script.mu.Unlock()
		n.script.servers[addr] = n
	}
	return addr, err
}

// Dial dials as what is wrapped, unless one of both ends has died.
func (n *node) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	n.script.mu.Lock()
	server := n.script.servers[addr]
	n.script.mu.Unlock()
	if n.died() || server != nil && server.died() {
		return nil, failure(fault.Refused, "dial "+addr, errDied)
	}
	if server == nil {
		inner, err := n.inner.Dial(ctx, addr)
		if err != nil {
			return nil, err
		}
		return n.newConn(inner, Unknown), nil
	}
	select {
	case server.dialSlot <- struct{}{}:
	case <-ctx.Done(): // the wrapped Dial finds the words for it
		return n.inner.Dial(ctx, addr)
	}
	defer func() { <-server.dialSlot }()
	return n.call(ctx, server, addr)
}

var errDied = errors.New("a rule has killed the node")

// call dials a node whose turn is ours, and waits for the other end.
func (n *node) call(ctx context.Context, server *node, addr string) (transport.Conn, error) {
	c := &pendingDial{near: n.unbound(server.number), paired: make(chan struct{})}
	server.expect(c)
	defer server.expect(nil)
	inner, err := n.inner.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	c.near.bind(inner)
	timer := time.NewTimer(pairTimeout)
	defer timer.Stop()
	select {
	case <-c.paired:
	case <-timer.C:
	case <-ctx.Done():
	}
	return c.near, nil
}

// expect sets the Dial whose turn it is; nil when it is over.
func (n *node) expect(c *pendingDial) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dial = c
}

// pair joins an accepted Conn with the one that the caller is about to get.
func (n *node) pair(far *conn) {
	n.mu.Lock()
	c := n.dial
	n.dial = nil
	n.mu.Unlock()
	if c == nil {
		return
	}
	near := c.near
	far.mu.Lock()
	far.peer, far.to = near, near.node.number
	far.mu.Unlock()
	near.mu.Lock()
	near.peer = far
	near.mu.Unlock()
	close(c.paired)
}

// Close closes what is wrapped; delays and burials under way end before it does.
func (n *node) Close() error {
	n.script.mu.Lock()
	var mine []*conn
	for c := range n.script.conns {
		if c.node == n {
			mine = append(mine, c)
		}
	}
	for addr, server := range n.script.servers {
		if server == n {
			delete(n.script.servers, addr)
		}
	}
	n.script.mu.Unlock()
	for _, c := range mine {
		c.Close()
	}
	err := n.inner.Close()
	n.timers.Wait()
	n.script.awaitKills()
	return err
}
