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
// A cost counts steps, bytes moved and bytes folded one after the other, for a rank
// that can send and receive at the same time.
//
// A drawing shows what moves in each step; a step is what such a rank does at once.
// "1 → 2" is a message. In drawings with one row per rank, the digits before the
// arrow are the ranks whose shares are folded into the message, in the order of the
// fold, or the chunks that it carries. In drawings of shared memory, A0 is rank 0's
// share of chunk A; "→" copies into a rank's own slot, and "←" out of another's.
// Tests execute the drawings: they record a run, draw it, and compare.
//
// # Chunks
//
// tensor.Chunk cuts a vector into n chunks, the first of which may be one element
// longer. The v-variants have chunks as long as their caller says. Chunks lie in
// rank order, without gaps, and may be empty. An empty chunk travels like any other,
// so that ranks that disagree still exchange messages and find out.
//
// # Hosts and racks
//
// Rings and binomial trees visit ranks host by host and rack by rack, in the order
// of package topology. For ranks on one host, and for most launchers' placements,
// that is rank order. For operators that do not commute, folds are in rank order
// wherever the ranks are.
//
// # Folds
//
// Every fold is op(earlier, later), in the order that the algorithm's header gives.
// The order depends only on the ranks, where they are placed, and the lengths, so
// equal runs give equal bits. All ranks get the same bits: a result is computed on
// one rank and copied, or computed by all from the same operands in the same order.
// What finishes a fold, the division of a mean, is applied once per element.
//
// The package does not know types of elements, communicators, transports or time.
package collective
