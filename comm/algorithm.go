package comm

import "github.com/tutti-go/tutti/collective"

// Algorithm returns the name of the algorithm that a collective of the communicator runs: the
// forced algorithm, or else the choice of the communicator's table. The parameter bytes is the size
// of the vector. For a collective whose vector consists of one part per rank, bytes is the size of
// all parts together. Algorithm assumes that the operator commutes. The parameter op is the
// collective's name in the form that errors use, such as "reduce_scatter". The form with Counts has
// the suffix "v". For an unknown name the result is "".
func (c *Comm) Algorithm(op string, bytes int) string {
	return c.algorithm(op, bytes, true)
}

// algorithm returns the table's choice for a blocking call. A blocking call may use the
// communicator's shared memory, if the communicator has any.
func (c *Comm) algorithm(op string, bytes int, commutative bool) string {
	verb, err := collective.ParseVerb(op)
	if err != nil {
		return ""
	}
	return c.chooser.Choose(verb, bytes, commutative, c.group.HasShared()).Algorithm.Name()
}

// transport returns the name of the transport between this rank and another rank of the
// communicator; see bridge.Communicator.
func (c *Comm) transport(rank int) string {
	switch {
	case rank < 0 || rank >= c.Size():
		return ""
	case rank == c.Rank():
		return "self"
	}
	return c.rt.wire.nameTo(c.rt.mesh.Addr(c.WorldRank(rank)))
}
