package collective

import (
	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/topology"
)

// A ringOrder is the order in which a ring passes a round's ranks: host by host and rack by rack.
// In each step, one message enters each host and one message leaves it.
type ringOrder struct {
	l  *topology.Layout
	n  int
	me int // this rank's position
}

func ringOrderOf(r *p2p.Round) ringOrder {
	l := r.Layout()
	return ringOrder{l: l, n: r.Size(), me: l.Position(r.Rank())}
}

// at returns the rank at the given distance after this rank. A negative distance gives a rank
// before this rank.
func (c ringOrder) at(distance int) int { return c.l.Rank(modulo(c.me+distance, c.n)) }
