// Package collective holds the algorithms of the collective operations, one per
// file, and the table that chooses among them.
//
// An algorithm is written against p2p.Round: it names its neighbours, loops over
// steps, exchanges and folds. Package p2p adds what the algorithms leave out:
// segments, tags, waiting, and element types beyond their size.
//
// Package comm calls the exported functions AllReduce, Broadcast, … once per
// operation. It has checked lengths, counts and roots before; here they are not
// checked again, and a buffer that does not fit panics as a slice out of range
// does. An algorithm that does not fit the operation, or its operator, is
// fault.Misuse before anything is sent. Every rank of the round makes the same call
// with an equal Algorithm. Goroutines may call a function at the same time with
// Rounds of their own. The slices are the caller's again when the function returns.
//
// # Words
//
//	n, m    the ranks, and the bytes of the whole vector
//	h       the hosts
//	chunk   the part of a vector that belongs to one rank
//	α       the time to start a message
//	β       the time to move a byte
//	γ       the time to fold a byte
//
// A cost counts the steps, and the bytes moved and folded one after the other,
// for a rank that can send and receive at the same time. A drawing shows what
// moves in each step, a step being what such a rank does at once. "1 → 2" is a
// message; in drawings with a row per rank, the digits before the arrow are the
// ranks whose shares are folded into it, in the order of the fold, or the chunks
// it carries. In drawings of shared memory A0 is rank 0's share of chunk A; it is
// put into a rank's own slot by "→", and taken out of another's by "←".
//
// # Chunks
//
// A vector of count elements is cut into n chunks of count/n elements, the first
// count%n of them one longer; see Chunk. Chunks of the v-variants are as long as
// their caller says. Chunks lie in rank order, without gaps, and may be empty; an
// empty one travels like any other, so that ranks that disagree still meet.
//
// # Hosts and racks
//
// Rings and binomial trees visit ranks host by host and rack by rack; package
// topology has the order. It is that of the ranks where they are placed so, as most
// launchers do, and for ranks on one host. Of operators that do not commute the
// folds are in rank order all the same.
//
// # Folds
//
// Every fold is op(earlier, later) in the order that the algorithm's header
// gives. The order depends on the ranks, where they are placed, and the lengths
// alone, so that equal runs give equal bits. A result that several ranks get is computed on one and copied,
// or computed by all from the same operands in the same order: it has the same
// bits on all of them. What finishes a fold (the division of a mean) is applied
// once to each element.
//
// The package does not know types of elements, communicators, transports or time.
package collective
