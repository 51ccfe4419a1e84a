package collective

import (
	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/topology"
)

// A ringOrder is a round's ranks in the order of its layout, as rings pass through
// them: host by host and rack by rack, so that of all messages of a step one
// enters each host, and one leaves it.
type ringOrder struct {
	l  *topology.Layout
	n  int
	me int // this rank's place
}

func ringOrderOf(r *p2p.Round) ringOrder {
	l := r.Layout()
	return ringOrder{l: l, n: r.Size(), me: l.Position(r.Rank())}
}

// at is the rank that comes so many places after this one; before it, if negative.
func (c ringOrder) at(distance int) int { return c.l.Rank(modulo(c.me+distance, c.n)) }
