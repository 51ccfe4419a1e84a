// Package topology says where ranks run, and in which order rings and trees visit
// them: host by host, and rack by rack, so that they cross each boundary as rarely
// as can be.
//
// A Place is a host and the rack it stands in. A Layout is the places of all ranks
// of a group, put in order; it is a pure function of them, so ranks that know the
// same places walk alike. A Walk is that order seen from a root.
//
// # The order
//
// Racks come in the order of their lowest ranks, hosts of a rack likewise, and the
// ranks of a host from the lowest on. Ranks that were given out host by host and
// rack by rack so keep their own order; others are sorted. Rank 0 is always first.
//
// # Racks
//
// Every rank may tell its own rack, or rank 0 reads all of them from a file; see
// ParseFile. Ranks without one are in one rack, whose name is "".
//
// The package does not know addresses, wires, or what moves along the order. What
// is given to it from outside is bounded and checked.
package topology
