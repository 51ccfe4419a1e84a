package comm

import "github.com/tutti-go/tutti/collective"

// Algorithm returns the name of the algorithm that a collective of the communicator runs: the
// forced algorithm, or the choice of the communicator's table. bytes is the size of the vector,
// or of all ranks' parts together where the collective has parts. The operator is assumed to
// commute. op is the collective's name as errors give it, such as "reduce_scatter", with a "v" at
// the end for the form with Counts. For an unknown name the result is "".
func (c *Comm) Algorithm(op string, bytes int) string {
	return c.algorithm(op, bytes, true)
}

// algorithm returns the table's choice for a blocking call, which may use the communicator's
// shared memory, if it has any.
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
