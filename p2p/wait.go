package p2p

import (
	"context"

	"github.com/tutti-go/tutti/mesh"
)

// A Waiter parks a goroutine until another goroutine wakes it. NewWaiter returns a Waiter, and Free
// frees it.
type Waiter = mesh.Waiter

// NewWaiter returns a Waiter for Group.Wait.
func (g *Group) NewWaiter() *Waiter { return g.e.Mesh().NewWaiter() }

// Wait waits on w until cond is met. Meanwhile it makes progress on the links of the requests. The
// code that meets the condition must wake w. ctx and p bound the wait; p may be nil.
func (g *Group) Wait(ctx context.Context, w *Waiter, cond mesh.Condition, p mesh.WaitPolicy, reqs ...*MessageRequest) error {
	var links []*mesh.Link
	for _, r := range reqs {
		links = append(links, r.activeLinks()...)
	}
	return g.e.Mesh().Wait(ctx, w, cond, p, links...)
}

// A LinkPoller polls the links to some members. It holds no state: the mesh records which goroutine
// polls and which links are armed.
type LinkPoller struct {
	mesh  *mesh.Mesh
	links []*mesh.Link
}

// NewPoller returns a LinkPoller for the links to the given members.
func (g *Group) NewPoller(from ...int) *LinkPoller {
	p := &LinkPoller{mesh: g.e.Mesh()}
	for _, r := range from {
		p.links = append(p.links, p.mesh.Link(g.ranks[r]))
	}
	return p
}

// Poll makes progress on the links for a bounded time, until cond is met or ctx has ended. It
// reports whether cond is met. If cond is not met, Poll has armed the links.
func (p *LinkPoller) Poll(ctx context.Context, cond mesh.Condition) bool {
	if p.mesh.Poll(ctx, cond, nil, p.links) {
		return true
	}
	p.Arm()
	return cond.Met()
}

// Arm makes the transport wake a goroutine for the next message on one of the links.
func (p *LinkPoller) Arm() { p.mesh.Arm(p.links) }
