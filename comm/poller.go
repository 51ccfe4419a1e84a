package comm

import (
	"context"

	"github.com/tutti-go/tutti/mesh"
)

// A Poller is for a goroutine that waits for what a callback of OnNamed will bring.
// It moves the messages of some members itself, for as long as that is worth while.
// Else they are moved when the wire wakes another goroutine, which takes longer; and
// for up to two milliseconds after a call that polled the wire does not.
type Poller struct {
	mesh  *mesh.Mesh
	links []*mesh.Link
}

// An Event is what is looked out for. Happened is called often and must be cheap; it
// may do what a callback has asked for. Once true it stays true until Poll returns.
type Event = mesh.Condition

// NewPoller makes one for messages from some of c's ranks. It may be used by one
// goroutine at a time, holds nothing, and needs no end.
func NewPoller(c *Comm, from ...int) *Poller {
	p := &Poller{mesh: c.rt.mesh}
	for _, r := range from {
		p.links = append(p.links, p.mesh.Link(c.WorldRank(r)))
	}
	return p
}

// Poll moves messages until ev has happened, which it reports, or ctx has ended, or it
// has looked for some hundred microseconds in vain: then the wires wake somebody for
// what comes. Ranks that share cores give them away between two looks.
func (p *Poller) Poll(ctx context.Context, ev Event) bool {
	if p.mesh.Poll(ctx, ev, nil, p.links) {
		return true
	}
	p.Arm()
	return ev.Met()
}

// Arm has the wires wake somebody for what comes, at once: nobody looks any more.
func (p *Poller) Arm() { p.mesh.Arm(p.links) }
