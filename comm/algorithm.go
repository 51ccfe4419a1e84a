package comm

import (
	"strings"

	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/transport"
)

// Algorithm returns the name of the algorithm that a collective of the communicator runs for a
// vector of that many bytes (all ranks' parts together, where it has parts) and an operator that
// commutes: the choice of its table, or what is forced. op is the collective's name as errors give
// it, "reduce_scatter", with a "v" at the end for the form with Counts; for another name the
// result is "".
func (c *Comm) Algorithm(op string, bytes int) string {
	return c.algorithm(op, bytes, true)
}

// algorithm asks the table as a blocking call does: with the shared memory that the
// communicator has, if any.
func (c *Comm) algorithm(op string, bytes int, commutative bool) string {
	verb, err := collective.ParseVerb(op)
	if err != nil {
		return ""
	}
	return c.chooser.Choose(verb, bytes, commutative, c.group.HasShared()).Algorithm.Name()
}

// Transport returns the name of the transport between this rank and another one of the
// communicator: "tcp", also where "auto" has chosen it. It is "self" for this rank, whose
// messages to itself use none, and "" for a rank that does not exist. Two ranks agree on the
// transport between them.
func (c *Comm) Transport(rank int) string {
	switch {
	case rank < 0 || rank >= c.Size():
		return ""
	case rank == c.Rank():
		return "self"
	}
	auto, picks := c.rt.wire.(transport.Selector)
	if !picks {
		return c.rt.wire.Name()
	}
	name, _, _ := strings.Cut(auto.Explain(c.rt.mesh.Addr(c.WorldRank(rank))), ":")
	return name
}
