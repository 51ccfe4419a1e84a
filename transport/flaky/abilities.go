package flaky

import (
	"bytes"
	"context"
	"errors"
	"net"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/tlsopt"
	"github.com/tutti-go/tutti/transport"
)

// A wrapped Conn and a wrapped Transport have the methods of all abilities of package transport.
// An ability that the inner value lacks, or that Options.Hide names, is refused in the way that
// its contract allows. The layer above then works without the ability, as it does over the inner
// value.

// errHidden is the cause of a refused ability.
var errHidden = errors.New("the wrapped transport lacks this ability, or the script hides it")

// Expose counts a step and exposes buf at the inner Conn. If the inner Conn is no Exposer, or
// the Script hides Expose, it returns fault.Refused and counts no step.
//
// A cut before the step closes the Conn, and nothing is exposed. If the step fails, memory that
// was exposed is released here, because the caller gets no release.
func (c *conn) Expose(id uint32, buf []byte) (to transport.Token, release func(), err error) {
	x, ok := c.inner.(transport.Exposer)
	if !ok || c.node.script.hides(Expose) {
		return transport.Token{}, nil, failure(fault.Refused, "expose", errHidden)
	}
	err = c.around(Expose, func() error {
		to, release, err = x.Expose(id, buf)
		return err
	})
	if err != nil && release != nil {
		release()
		release = nil
	}
	return to, release, err
}

// Admit admits the inner Conn, if it is pending. It is not a step.
func (c *conn) Admit() {
	if p, ok := c.inner.(transport.Pending); ok {
		p.Admit()
	}
}

// RemoteAddr returns the peer's address from the inner Conn, or nil if the inner Conn has none.
func (c *conn) RemoteAddr() net.Addr {
	if p, ok := c.inner.(transport.Pending); ok {
		return p.RemoteAddr()
	}
	return nil
}

// PeerName returns the peer's name from the inner Conn, or "" if the inner Conn has none.
func (c *conn) PeerName() string {
	if n, ok := c.inner.(tlsopt.Named); ok {
		return n.PeerName()
	}
	return ""
}

// Traffic returns the inner Conn's counts of bytes. If the inner Conn has no counts, Traffic
// returns zeros, which mean that no bytes are on their way. The counts do not include frames that
// wait in the wrapper.
func (c *conn) Traffic() (sent, acked, received, arrived uint64) {
	if t, ok := c.inner.(interface {
		Traffic() (sent, acked, received, arrived uint64)
	}); ok {
		return t.Traffic()
	}
	return 0, 0, 0, 0
}

// around counts a step without bytes, calls its function argument, and applies the rules that are
// due before and after the call. If a rule cuts before the step, around returns the error of the
// cut and does not call the function. After a cut that follows the step, the next step fails.
//
// A step without bytes has no middle, so Within counts as After.
func (c *conn) around(kind StepKind, do func() error) error {
	s := c.node.script
	st := c.step(kind, nil)
	due := s.count(st)
	for _, i := range due {
		if s.rules[i].moment == Before {
			s.apply(i, st.From, c)
		}
	}
	if err := c.failed(nil); err != nil {
		return err
	}
	err := do()
	for _, i := range due {
		if m := s.rules[i].moment; m == Within || m == After {
			s.apply(i, st.From, c)
		}
	}
	return err
}

// TrySend counts a step and sends the frame inline, unless frames are queued or a rule is due at
// this step. If a rule is due, TrySend refuses the frame, as any Conn may. The rule then applies
// to the next Send on this Conn, which counts as the same step. That Send may come from any
// goroutine and may have another frame. TrySend cannot identify the refused frame later, because
// the layer above may change its head or drop it. The count of steps stays right if the refused
// frame is sent by Send.
func (c *conn) TrySend(head, body []byte) bool {
	if c.node.script.hides(TrySend) {
		return false
	}
	c.mu.Lock()
	// A frame must not overtake the frames in the queue. If tryRules is set, the step of a refused
	// frame has already been counted.
	if c.pumping || len(c.queue) > 0 || c.tryRules != nil {
		c.mu.Unlock()
		return false
	}
	c.pumping = true // later frames are queued after this frame
	c.mu.Unlock()
	sent, due := false, []int(nil)
	alive := c.failed(nil) == nil
	if alive {
		due = c.node.script.count(c.step(TrySend, head))
		sent = len(due) == 0 && c.inner.TrySend(head, body)
	}
	c.mu.Lock()
	c.pumping = false
	if sent {
		c.sent++
	} else if alive {
		c.tryRules = &due
	}
	c.mu.Unlock()
	c.pump()
	return sent
}

// count counts a frame of Send, unless TrySend has counted the frame. It returns the rules that are
// due at the frame.
func (c *conn) count(head []byte, kind StepKind) []int {
	c.mu.Lock()
	due := c.tryRules
	c.tryRules = nil
	c.mu.Unlock()
	if due != nil {
		return *due
	}
	return c.node.script.count(c.step(kind, head))
}

// join replaces the parts of the body of f by one piece.
//
// It simulates a transport that cannot gather. So suites can compare frames in parts with joined
// frames.
func join(f *transport.Frame) {
	f.Body, f.Parts = bytes.Join(append([][]byte{f.Body}, f.Parts...), nil), nil
}

// Prefix returns the result of the inner Transport.
//
// If the inner Transport is no Greeter, Proto is empty. Then package mesh passes the whole listener
// to the node, as for the inner Transport.
func (n *node) Prefix(first []byte) bool {
	g, ok := n.inner.(transport.Greeter)
	return ok && g.Prefix(first)
}

// Proto returns the inner Transport's ALPN name; "" if it is no Greeter.
func (n *node) Proto() string {
	if g, ok := n.inner.(transport.Greeter); ok {
		return g.Proto()
	}
	return ""
}

// Alloc allocates from the inner Transport. It is not a step.
func (n *node) Alloc(size int) (mem []byte, free func() error, err error) {
	if a, ok := n.inner.(transport.Allocator); ok {
		return a.Alloc(size)
	}
	return nil, nil, failure(fault.Refused, "allocate", errHidden)
}

// Explain returns the result of the inner Transport.
//
// If the inner Transport is no Selector, the result is the name of the inner Transport, which comm
// reports as the wire to every peer.
func (n *node) Explain(addr string) string {
	if ch, ok := n.inner.(transport.Selector); ok {
		return ch.Explain(addr)
	}
	return n.inner.Name() + ": it is the only wire"
}

// SharerFor returns the Sharer of the inner Transport for these ranks, or nil if it has none.
// Shares of the returned Sharer count as steps. A node itself is no Sharer, because the inner
// Transport may be unable to share.
//
// Suites must not get a Sharer that always fails. With such a Sharer the ranks would agree to use
// shared memory, notice that one rank has none, and log a warning.
func (n *node) SharerFor(addrs []string) transport.Sharer {
	inner, ok := n.inner.(transport.Sharer)
	if ch, chooses := n.inner.(transport.Selector); chooses {
		inner = ch.SharerFor(addrs)
		ok = inner != nil
	}
	if !ok || n.script.hides(Share) {
		return nil
	}
	return &sharer{n, inner}
}

// A sharer counts the Shares of a node.
type sharer struct {
	n     *node
	inner transport.Sharer
}

// Share counts a step and calls Share of the inner Sharer. A cut before the step returns an
// error without calling the inner Share. A cut after the step returns an error once the inner
// Share has returned. No Conn is cut, because a Share has none.
func (s *sharer) Share(ctx context.Context, name string, ranks, size int) ([]byte, func() error, error) {
	script := s.n.script
	due := script.count(Step{Kind: Share, From: s.n.number, To: Unknown})
	for _, i := range due {
		if script.rules[i].moment == Before {
			script.apply(i, s.n.number, nil)
			return nil, nil, failure(fault.LinkLost, script.rules[i].String(), nil)
		}
	}
	mem, release, err := s.inner.Share(ctx, name, ranks, size)
	for _, i := range due {
		if m := script.rules[i].moment; err == nil && (m == Within || m == After) {
			release()
			script.apply(i, s.n.number, nil)
			return nil, nil, failure(fault.LinkLost, script.rules[i].String(), nil)
		}
	}
	return mem, release, err
}

var (
	_ transport.Conn      = (*conn)(nil)
	_ transport.Exposer   = (*conn)(nil)
	_ transport.Pending   = (*conn)(nil)
	_ transport.Transport = (*node)(nil)
	_ transport.Greeter   = (*node)(nil)
	_ transport.Selector  = (*node)(nil)
	_ transport.Allocator = (*node)(nil)
)
