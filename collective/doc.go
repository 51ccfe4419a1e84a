// Package collective holds the algorithms of the collective operations, one per
// file, and the table that chooses among them.
//
// An algorithm uses the methods of p2p.Round: it determines its neighbours, loops over steps,
// exchanges messages and folds. Package p2p adds segments, tags and waiting. The algorithms
// themselves know only the size of an element.
//
// Package comm calls the exported functions AllReduce, Broadcast, … once per operation. Package
// comm checks lengths, counts and roots. Package collective does not check them again: a buffer of
// the wrong length causes a slice index to panic. If the algorithm does not support the operation
// or its operator, the function returns fault.Misuse and sends nothing. Every rank of the round
// makes the same call with an equal Algorithm. Several goroutines may call a function at the same
// time, each with its own Round. A function does not use its slices after it returns.
//
// # Words
//
//	n, h    the number of ranks, the number of hosts
//	m       the number of bytes of the whole vector
//	chunk   the part of a vector that belongs to one rank
//	α       the time to start a message
//	β       the time to move a byte
//	γ       the time to fold a byte
//
// A cost counts the steps, the bytes moved and the bytes folded on the critical path. It assumes
// that a rank can send and receive at the same time.
//
// A drawing shows what moves in each step. In one step, a rank sends at most one message and
// receives at most one message. In drawings with one row per chunk, "1 → 2" is a message from rank
// 1 to rank 2. In drawings with one row per rank, the digits before the arrow are the ranks whose
// shares are folded into the message, in the order of the fold, or the chunks in the message. In
// drawings of shared memory, A0 is rank 0's share of chunk A. There "→" is a copy into a rank's own
// slot, and "←" is a copy out of a slot. Tests execute the drawings: they record a run, draw it,
// and compare.
//
// # Chunks
//
// tensor.Chunk cuts a vector into n chunks. The first chunks may be one element longer than the
// others. The caller of a v-variant gives the length of each chunk. Chunks lie in rank order,
// without gaps, and may be empty. An empty chunk is sent as an empty message, so that ranks that
// disagree about a length still exchange messages and detect the mismatch.
//
// # Hosts and racks
//
// Rings and binomial trees visit ranks host by host and rack by rack, in the order of package
// topology. For ranks on one host, and for the placements of most launchers, this order is rank
// order. Operators that do not commute are folded in rank order, whatever the placement.
//
// # Folds
//
// Every fold is op(earlier, later), in the order that the algorithm's header gives. The order
// depends only on the ranks, where they are placed, and the lengths, so equal runs give equal bits.
// All ranks get the same bits, because a result is computed on one rank and copied, or all ranks
// compute it from the same operands in the same order. The last step of a fold, the division of a
// mean, is applied once per element.
//
// The package does not use element types, communicators, transports or clocks.
package collective
