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

// pairTimeout is how long a Dial waits for the other end's accept, to learn which Conns belong
// together. A Conn without a pair works, but leads to Unknown.
//
// It bounds a test that dials a node which never accepts; every other pair is known at once.
const pairTimeout = 2 * time.Second

// A node is a wrapped Transport.
type node struct {
	inner  transport.Transport
	script *Script
	number int
	death  *death

	dialSlot chan struct{}  // one slot: held by the Dial to this node
	timers   sync.WaitGroup // running delays

	mu   sync.Mutex   // guards caller
	dial *pendingDial // the Dial that holds dialSlot
}

// A pendingDial is a Dial that waits for the Conn that the other node accepts.
//
// The Dial returns when both ends are known to each other, or after pairTimeout.
type pendingDial struct {
	near   *conn
	paired chan struct{} // closed when near and the accepted Conn know each other
}

// Wrap makes t the node of that number.
func (s *Script) Wrap(t transport.Transport, number int) transport.Transport {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := &node{inner: t, script: s, number: number, death: s.deathOf(number), dialSlot: make(chan struct{}, 1)}
	return n
}

// Name returns the inner Transport's name.
func (n *node) Name() string { return n.inner.Name() }

// Serve serves the inner Transport and wraps each accepted Conn.
//
// The address is registered under this node. A Dial to it in this process then knows its peer.
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

// Dial dials the inner Transport, unless this node or the other one has died.
//
// A Dial holds the other node's dialSlot, so that the next Conn which that node accepts is the
// other end of this Dial. Dials to different nodes run at once.
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
	case <-ctx.Done(): // the inner Dial returns the error
		return n.inner.Dial(ctx, addr)
	}
	defer func() { <-server.dialSlot }()
	return n.call(ctx, server, addr)
}

// errDied is the cause of what a dead node, or a Dial to it, fails by.
var errDied = errors.New("a rule has killed the node")

// call dials a node whose dialSlot it holds, and waits for the other end.
//
// The Conn exists before the inner Dial, because the other node may accept before that returns.
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

// expect sets the Dial that holds dialSlot; nil when that has ended.
func (n *node) expect(c *pendingDial) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dial = c
}

// pair connects an accepted Conn with the one that the dialling node is about to return.
//
// From then on both ends know each other, and rules with To match.
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

// Close closes the inner Transport, after delays and kills have ended.
//
// The addresses of the node are forgotten, so that a later node may serve them. Its Conns are
// closed first, which ends their delays.
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
