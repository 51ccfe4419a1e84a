// Package topology describes where ranks run, and the order in which rings and trees visit them.
// The order is rack by rack and host by host, so that messages cross each boundary as rarely as
// possible.
//
// A Place is a host and its rack. A Layout orders the ranks of a group by their places. It is a
// pure function of the places, so all ranks that know the same places use the same order. A Walk is
// the order of a Layout, rotated so that it begins at a root.
//
// # The order
//
// Racks are ordered by their lowest rank. The hosts of a rack are also ordered by their lowest
// rank, and the ranks of a host by number. Rank 0 is always first. If a launcher has assigned ranks
// rack by rack and host by host, the order is rank order.
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
// The folds of rings and trees follow this order, so it also determines the bits of results.
// Therefore the order depends only on which ranks share a host and a rack, not on the names of
// hosts and racks.
//
// # Racks
//
// Each rank may name its own rack. Otherwise rank 0 reads a file that lists the racks of all hosts;
// see ParseFile. Ranks without a rack share the rack "".
//
// The package does not know addresses, wires, or what moves along the order. It checks all external
// input and limits the size of the input.
package topology
