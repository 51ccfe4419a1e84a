package flaky

import (
	"context"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// Abilities are found by type assertion, so a wrapper has to have exactly the
// methods of what it wraps. Each ability is a type of its own here, and a
// wrapper is the struct that embeds those it needs.

type exposes struct{ c *conn }

// Expose counts, and exposes.
func (e exposes) Expose(id uint32, buf []byte) (to transport.Token, release func(), err error) {
	c := e.c
	err = c.around(Expose, func() error {
		to, release, err = c.inner.(transport.Exposer).Expose(id, buf)
		return err
	})
	if err != nil && release != nil {
		release()
		release = nil
	}
	return to, release, err
}

type gathers struct{ c *conn }

// SendParts counts f and sends it, unless a rule says otherwise.
func (g gathers) SendParts(f *transport.Frame, parts [][]byte) {
	g.c.send(&queuedFrame{Frame: *f, orig: f, parts: parts, gather: true}, Parts)
}

type admits struct{ c *conn }

// Admit is not a step.
func (a admits) Admit() { a.c.inner.(transport.Pending).Admit() }

// around counts a step without bytes, and applies the rules due before and
// after it. A cut before it is its error; one after it shows in the next step.
func (c *conn) around(kind Kind, do func() error) error {
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

// able says whether a Conn is an Exposer and a Gatherer. That it is a Prompter is said
// by a type of its own; see prompt.go.
type able [2]bool

// withAbilities is c with the methods that the wrapped Conn has beyond a Conn's.
func (c *conn) withAbilities() transport.Conn {
	_, x := c.inner.(transport.Exposer)
	_, g := c.inner.(transport.Gatherer)
	hides := c.node.script.hides
	is := able{x && !hides(Expose), g && !hides(Parts)}
	_, guest := c.inner.(transport.Pending)
	if _, prompt := c.inner.(transport.Prompter); prompt && !hides(TrySend) {
		return prompter{c}.withAbilities(is, guest)
	}
	if guest {
		return c.asGuest(is)
	}
	return c.asMember(is)
}

// asMember is a Conn without Admit. It is long because Go has no other way to
// say "with these methods and no others".
func (c *conn) asMember(is able) transport.Conn {
	x, g := exposes{c}, gathers{c}
	switch is {
	case able{true, true}:
		return struct {
			*conn
			exposes
			gathers
		}{c, x, g}
	case able{true, false}:
		return struct {
			*conn
			exposes
		}{c, x}
	case able{false, true}:
		return struct {
			*conn
			gathers
		}{c, g}
	}
	return c
}

// asGuest is a Conn with Admit.
func (c *conn) asGuest(is able) transport.Conn {
	x, g, a := exposes{c}, gathers{c}, admits{c}
	switch is {
	case able{true, true}:
		return struct {
			*conn
			exposes
			gathers
			admits
		}{c, x, g, a}
	case able{true, false}:
		return struct {
			*conn
			exposes
			admits
		}{c, x, a}
	case able{false, true}:
		return struct {
			*conn
			gathers
			admits
		}{c, g, a}
	}
	return struct {
		*conn
		admits
	}{c, a}
}

type shares struct{ n *node }

// Share counts, and shares. A cut before it fails this rank's Share without
// having come; one after it, when all have come. A Share has no Conn to cut.
func (s shares) Share(ctx context.Context, name string, ranks, size int) ([]byte, func() error, error) {
	script := s.n.script
	due := script.count(Step{Kind: Share, From: s.n.number, To: Unknown})
	for _, i := range due {
		if script.rules[i].moment == Before {
			script.apply(i, s.n.number, nil)
			return nil, nil, failure(fault.LinkLost, script.rules[i].String(), nil)
		}
	}
	mem, release, err := s.n.inner.(transport.Sharer).Share(ctx, name, ranks, size)
	for _, i := range due {
		if m := script.rules[i].moment; err == nil && (m == Within || m == After) {
			release()
			script.apply(i, s.n.number, nil)
			return nil, nil, failure(fault.LinkLost, script.rules[i].String(), nil)
		}
	}
	return mem, release, err
}

type greets struct{ n *node }

// Prefix is what is wrapped's.
func (g greets) Prefix(first []byte) bool { return g.n.inner.(transport.Greeter).Prefix(first) }

// Proto is what is wrapped's.
func (g greets) Proto() string { return g.n.inner.(transport.Greeter).Proto() }

type allocates struct{ n *node }

// Alloc is not a step.
func (a allocates) Alloc(size int) ([]byte, func() error, error) {
	return a.n.inner.(transport.Allocator).Alloc(size)
}

// withAbilities is n with the methods that the wrapped Transport has beyond a
// Transport's. It is long for asMember's reason.
func (n *node) withAbilities() transport.Transport {
	_, share := n.inner.(transport.Sharer)
	share = share && !n.script.hides(Share)
	_, greet := n.inner.(transport.Greeter)
	_, alloc := n.inner.(transport.Allocator)
	s, g, a := shares{n}, greets{n}, allocates{n}
	switch [3]bool{share, greet, alloc} {
	case [3]bool{true, true, true}:
		return struct {
			*node
			shares
			greets
			allocates
		}{n, s, g, a}
	case [3]bool{true, true, false}:
		return struct {
			*node
			shares
			greets
		}{n, s, g}
	case [3]bool{true, false, true}:
		return struct {
			*node
			shares
			allocates
		}{n, s, a}
	case [3]bool{true, false, false}:
		return struct {
			*node
			shares
		}{n, s}
	case [3]bool{false, true, true}:
		return struct {
			*node
			greets
			allocates
		}{n, g, a}
	case [3]bool{false, true, false}:
		return struct {
			*node
			greets
		}{n, g}
	case [3]bool{false, false, true}:
		return struct {
			*node
			allocates
		}{n, a}
	}
	return n
}
