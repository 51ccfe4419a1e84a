package comm

import (
	"strings"

	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/transport"
)

// Algorithm is the name of the algorithm that a collective of the communicator
// runs for vectors of that many bytes (all ranks' parts together, where it has
// parts) and operators that commute: what its table chooses, or what is forced.
// op is the collective's name as errors give it, "reduce_scatter"; for a name
// that is none the answer is "".
func (c *Comm) Algorithm(op string, bytes int) string {
	return c.algorithm(op, bytes, true)
}

func (c *Comm) algorithm(op string, bytes int, commutative bool) string {
	verb, err := collective.ParseVerb(op)
	if err != nil {
		return ""
	}
	return c.chooser.Choose(verb, bytes, commutative, c.group.HasShared()).Algorithm.Name()
}

// Transport is the name of the wire between this rank and another one of the
// communicator: "tcp", also where that is what "auto" has picked. It is "self"
// for this rank, whose messages to itself take no wire, and "" for a rank that
// is none.
func (c *Comm) Transport(rank int) string {
	switch {
	case rank < 0 || rank >= c.Size():
		return ""
	case rank == c.Rank():
		return "self"
	}
	auto, picks := c.rt.wire.(transport.Chooser)
	if !picks {
		return c.rt.wire.Name()
	}
	name, _, _ := strings.Cut(auto.Explain(c.rt.mesh.Addr(c.WorldRank(rank))), ":")
	return name
}
