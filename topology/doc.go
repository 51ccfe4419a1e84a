// Package topology holds where ranks run, and the order in which rings and trees visit
// them: rack by rack and host by host, so that they cross each boundary as rarely as
// possible.
//
// A Place is a host and its rack. A Layout orders the ranks of a group by their
// places. It is a pure function of the places, so all ranks that know the same
// places use the same order. A Walk is that order as seen from a root.
//
// # The order
//
// Racks are ordered by their lowest rank, the hosts of a rack likewise, and the ranks
// of a host by number. Rank 0 is always first. Ranks that a launcher assigned rack by
// rack and host by host keep their own order.
//
// For example, a launcher that places eight ranks round robin on four hosts of two
// racks gives
//
//	rank      0  1  2  3  4  5  6  7
//	host      n0 n1 n2 n3 n0 n1 n2 n3
//	rack      a  b  a  b  a  b  a  b
//	position  0  4  2  6  1  5  3  7
//
// and a ring passes the ranks 0 4 2 6 1 5 3 7. In each of its steps, one message leaves each
// rack. In a ring in rank order, all eight messages of a step would cross between racks.
//
// The order matters for bits, too: the folds of rings and trees follow it. Therefore the order
// depends only on which ranks share a host and a rack, not on the names of hosts and racks.
//
// # Racks
//
// Each rank may name its own rack, or rank 0 reads a file that lists all of them; see
// ParseFile. Ranks without a rack share the rack "".
//
// The package does not know addresses, wires, or what moves along the order. It checks all
// external input, and bounds its size.
package topology
