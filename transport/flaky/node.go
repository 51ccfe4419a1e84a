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

// pairTimeout is how long a Dial waits for the other node to accept, so that the Script learns
// which two Conns form a pair. A Conn without a pair works, but its peer is Unknown.
//
// Only a Dial to a node that never accepts waits so long. All other Dials are paired at once.
const pairTimeout = 2 * time.Second

// A node is a wrapped Transport.
type node struct {
	inner  transport.Transport
	script *Script
	number int
	death  *death

	dialSlot chan struct{}  // has one slot; the Dial to this node holds it
	timers   sync.WaitGroup // running delays

	mu   sync.Mutex   // guards dial
	dial *pendingDial // the Dial that holds dialSlot
}

// A pendingDial is a Dial that waits for the Conn that the other node accepts.
//
// The Dial returns when both Conns know each other, or after pairTimeout.
type pendingDial struct {
	near   *conn
	paired chan struct{} // closed when near and the accepted Conn know each other
}

// Wrap returns a Transport that passes calls on to t and counts its steps. The steps count as steps
// of the node with the given number.
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
// Serve registers the address as an address of this node. So a Dial to that address in this
// process knows which node it reaches.
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

// Dial dials the inner Transport, unless this node or the other node has died.
//
// While it runs, a Dial holds the dialSlot of the other node. So the next Conn that the other
// node accepts is the other end of this Dial. Dials to different nodes can run at the same time.
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

// errDied is the cause of the error that a dead node returns, and of the error of a Dial to a
// dead node.
var errDied = errors.New("a rule has killed the node")

// call dials another node, whose dialSlot the caller holds, and waits until the other end is known.
//
// The wrapped Conn is made before the inner Dial, because the other node may accept before the
// inner Dial returns.
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

// expect sets the Dial that holds dialSlot, or nil when that Dial has ended.
func (n *node) expect(c *pendingDial) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dial = c
}

// pair joins an accepted Conn with the Conn that the dialling node is about to return.
//
// From then on each end knows its peer, and rules restricted by To can match.
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

// Close closes the Conns of the node and the inner Transport. It returns when delays and kills
// have ended.
//
// It removes the addresses of the node, so that a later node may serve them. It closes the Conns
// first, which ends their delays.
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
