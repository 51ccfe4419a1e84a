package flaky

import "github.com/tutti-go/tutti/transport"

// A prompter is a wrapped Conn that is a Prompter.
type prompter struct{ *conn }

// TrySend counts, and sends at once unless frames stand in line or a rule is due at
// this one. Then it refuses, as any Conn may, and the rule is for the Send that
// follows, which is the same step. That is the next Send of anybody on this Conn:
// nothing tells the refused frame from another's, as a layer above may put other
// credit into its head, or not send it at all. The number of steps stays right as long
// as it is sent; where several goroutines send, the rule may meet another's frame.
func (c prompter) TrySend(head, body []byte) bool {
	c.mu.Lock()
	if c.pumping || len(c.queue) > 0 || c.tryRules != nil {
		c.mu.Unlock()
		return false
	}
	c.pumping = true // what is sent meanwhile comes behind it
	c.mu.Unlock()
	did, due := false, []int(nil)
	alive := c.failed(nil) == nil
	if alive {
		due = c.node.script.count(c.step(TrySend, head))
		did = len(due) == 0 && c.inner.(transport.Prompter).TrySend(head, body)
	}
	c.mu.Lock()
	c.pumping = false
	if did {
		c.sent++
	} else if alive {
		c.tryRules = &due
	}
	c.mu.Unlock()
	c.pump()
	return did
}

// count counts a frame that comes to Send, unless SendNow has, and returns the rules
// that are due at it.
func (c *conn) count(head []byte, kind Kind) []int {
	c.mu.Lock()
	due := c.tryRules
	c.tryRules = nil
	c.mu.Unlock()
	if due != nil {
		return *due
	}
	return c.node.script.count(c.step(kind, head))
}

// Linger is Progress by the wrapped Conn's Linger.
func (c prompter) Linger(in transport.Sink, looks int) (transport.State, error) {
	return c.progress(in, func(in transport.Sink) (transport.State, error) {
		return c.inner.(transport.Prompter).Linger(in, looks)
	})
}

// withAbilities is c with what else the wrapped Conn can do.
func (c prompter) withAbilities(is able, guest bool) transport.Conn {
	if guest {
		return c.asGuest(is)
	}
	return c.asMember(is)
}

// asMember is a Conn without Admit; see conn.asMember.
func (c prompter) asMember(is able) transport.Conn {
	x, g := exposes{c.conn}, gathers{c.conn}
	switch is {
	case able{true, true}:
		return struct {
			prompter
			exposes
			gathers
		}{c, x, g}
	case able{true, false}:
		return struct {
			prompter
			exposes
		}{c, x}
	case able{false, true}:
		return struct {
			prompter
			gathers
		}{c, g}
	}
	return c
}

// asGuest is a Conn with Admit.
func (c prompter) asGuest(is able) transport.Conn {
	x, g, a := exposes{c.conn}, gathers{c.conn}, admits{c.conn}
	switch is {
	case able{true, true}:
		return struct {
			prompter
			exposes
			gathers
			admits
		}{c, x, g, a}
	case able{true, false}:
		return struct {
			prompter
			exposes
			admits
		}{c, x, a}
	case able{false, true}:
		return struct {
			prompter
			gathers
			admits
		}{c, g, a}
	}
	return struct {
		prompter
		admits
	}{c, a}
}
