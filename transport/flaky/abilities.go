package flaky

import (
	"bytes"
	"context"
	"errors"
	"net"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// A wrapped Conn and a wrapped Transport have all abilities of package transport. What the inner
// value lacks, or Options.Hide names, they refuse in the way in which the ability allows it. The
// layer above then does without it, as over the inner value.

// errHidden is the cause of a refused ability.
var errHidden = errors.New("the wrapped transport lacks this ability, or the script hides it")

// Expose counts a step and exposes buf at the inner Conn. If that exposes nothing, it returns
// fault.Refused and counts no step.
//
// A cut before the step closes the Conn, so that nothing is exposed. A cut after it releases the
// memory again, because the caller gets an error and no release.
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

// RemoteAddr returns the inner Conn's address of the peer; nil if it has none.
func (c *conn) RemoteAddr() net.Addr {
	if p, ok := c.inner.(transport.Pending); ok {
		return p.RemoteAddr()
	}
	return nil
}

// around counts a step without bytes, and applies the rules that are due before and after it. A cut
// before the step is its error; a cut after it shows in the next step.
//
// Within has no meaning for a step without bytes and counts as After.
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

// TrySend counts a step and sends inline, unless frames are queued or a rule is due at this step.
// Then it refuses, as any Conn may, and the rule applies to the next Send on this Conn, by any
// goroutine, as the same step. Nothing else identifies the refused frame, because the layer above
// may change its head, or not send it at all. The count of steps stays right as long as that frame
// is sent; where several goroutines send, the rule may apply to another one's frame.
func (c *conn) TrySend(head, body []byte) bool {
	if c.node.script.hides(TrySend) {
		return false
	}
	c.mu.Lock()
	// Frames that wait here must not be overtaken. A frame that was refused has its step counted
	// already.
	if c.pumping || len(c.queue) > 0 || c.tryRules != nil {
		c.mu.Unlock()
		return false
	}
	c.pumping = true // later frames are queued behind this one
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

// count counts a frame of Send, unless TrySend has counted it, and returns the rules that are due
// at it.
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

// join replaces the parts of f's body by one piece.
//
// It stands for a wire that cannot gather, so that suites can compare both ways through the layers
// above.
func join(f *transport.Frame) {
	f.Body, f.Parts = bytes.Join(append([][]byte{f.Body}, f.Parts...), nil), nil
}

// Prefix returns the inner Transport's answer.
//
// A node whose inner Transport is no Greeter has an empty Proto, and mesh then gives it the whole
// listener, as it does to the inner one.
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

// Explain returns the inner Transport's answer.
//
// Without a Chooser the answer is the inner Transport's name, which comm reports as the wire to
// every peer.
func (n *node) Explain(addr string) string {
	if ch, ok := n.inner.(transport.Selector); ok {
		return ch.Explain(addr)
	}
	return n.inner.Name() + ": it is the only wire"
}

// SharerFor returns the inner Transport's Sharer for these ranks, wrapped so that its Shares are
// steps; nil if there is none. A node itself is no Sharer, because whether it could share depends
// on what it wraps.
//
// Suites must not get a Sharer that fails: the ranks would agree on shared memory, find that one
// rank has none, and log a warning.
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

// Share counts a step, and shares. A cut before it fails this rank's Share without calling the
// inner one; a cut after it fails it when all ranks have come. A Share has no Conn to cut.
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
