package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
)

// ringAllGather gives every rank the chunks of all other ranks. On entry, each rank's own chunk is
// in buf.
//
// A chunk goes around the ring once, and every rank that it passes keeps a copy. With four
// ranks:
//
//	          step 0   step 1   step 2
//	chunk 0   0 → 1    1 → 2    2 → 3
//	chunk 1   1 → 2    2 → 3    3 → 0
//	chunk 2   2 → 3    3 → 0    0 → 1
//	chunk 3   3 → 0    0 → 1    1 → 2
//
// Cost: (n-1)α + m(n-1)/n β.
//
// Nothing is folded. Chunks may differ in length; each step then takes the time of the longest
// chunk. The ring passes the ranks in the order of their hosts and racks, so in each step one
// message enters each host and one message leaves it.
//
// This is the second half of the ring all-reduce of Patarasuk and Yuan, "Bandwidth optimal
// all-reduce algorithms for clusters of workstations", JPDC 69(2), 2009.
func ringAllGather(ctx context.Context, r *p2p.Round, buf chunks) error {
	ring := ringOrderOf(r)
	next, prev := ring.at(1), ring.at(-1)

	for step := range ring.n - 1 {
		outgoing := buf.of(ring.at(-step))
		incoming := buf.of(ring.at(-1 - step))
		if err := r.Exchange(ctx, next, outgoing, prev, incoming); err != nil {
			return err
		}
	}
	return nil
}
