package ps

import (
	"sync"

	"github.com/tutti-go/tutti/ps/internal/message"
	"github.com/tutti-go/tutti/ps/internal/part"
)

// A gate submits the calls of a replicated part in their order. The calls of a synchronous part that
// push or set wait in it for the answers to the client's earlier pulls: the part has only the newest
// version, so an answer that is lost with its epoch must not be followed by a push.
type gate struct {
	d *declared
	p *clientPart

	mu         sync.Mutex
	held       []*call // in their order
	pulls      int     // calls that have been submitted, and wait for values
	submitting bool    // a goroutine submits held calls
}

// submit submits a call, or holds it.
func (g *gate) submit(c *call) {
	c.part = g.p
	if reads(c) {
		done := c.done
		c.done = func(err error) {
			done(err)
			g.answered()
		}
	}
	g.mu.Lock()
	g.held = append(g.held, c)
	start := !g.submitting
	g.submitting = true
	g.mu.Unlock()
	if start {
		g.flush()
	}
}

// answered counts the end of a call that waited for values. It may run while the client's routes are
// locked, so another goroutine submits what is held.
func (g *gate) answered() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pulls--
	if !g.submitting && len(g.held) > 0 {
		g.submitting = true
		go g.flush()
	}
}

// flush submits the calls that need not wait.
func (g *gate) flush() {
	for c := g.next(); c != nil; c = g.next() {
		cl := g.d.cl
		cl.routes.RLock()
		g.p.link.submit(c)
		cl.routes.RUnlock()
	}
}

// next returns the next call to submit, or nil if it must wait.
func (g *gate) next() *call {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.held) == 0 || g.pulls > 0 && g.d.spec.Mode == part.Synchronous && writes(g.held[0]) {
		g.submitting = false
		return nil
	}
	c := g.held[0]
	g.held[0] = nil
	g.held = g.held[1:]
	if reads(c) {
		g.pulls++
	}
	return c
}

// reads reports whether a call waits for values.
func reads(c *call) bool {
	switch c.q.Kind {
	case message.Pull, message.PushPull, message.PullState:
		return true
	}
	return false
}

// writes reports whether a call is an entry of the part's log.
func writes(c *call) bool {
	switch c.q.Kind {
	case message.Push, message.PushPull, message.Set, message.SetState:
		return true
	}
	return false
}
