package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
)

// neighborExchangeAllGather gives every rank the chunks of all other ranks. On entry, each rank's
// own chunk is in buf.
//
// Neighbours exchange their chunks two by two. Then each rank exchanges the two chunks that
// arrived last, with its left and its right neighbour in turn. The algorithm needs an even
// number of ranks; an odd number uses ringAllGather. With six ranks:
//
//	         step 0   step 1   step 2
//	rank 0   0 → 1    01 → 5   45 → 1
//	rank 1   1 → 0    01 → 2   23 → 0
//	rank 2   2 → 3    23 → 1   01 → 3
//	rank 3   3 → 2    23 → 4   45 → 2
//	rank 4   4 → 5    45 → 3   23 → 5
//	rank 5   5 → 4    45 → 0   01 → 4
//
// Cost: n/2 α + m(n-1)/n β; for odd n, (n-1)α + m(n-1)/n β.
//
// Nothing is folded. Chunks may differ in length; each step then takes the time of the longest
// chunks.
//
// Chen, Zhang, Zhang and Yuan, "Performance evaluation of allgather algorithms on terascale
// Linux cluster with fast Ethernet", HPC Asia 2005.
func neighborExchangeAllGather(ctx context.Context, r *p2p.Round, buf chunks) error {
	n, me := r.Size(), r.Rank()
	if n%2 != 0 {
		return ringAllGather(ctx, r, buf)
	}
	side := 1 - me%2*2 // the direction of the other rank of the pair
	partner := me + side
	if err := r.Exchange(ctx, partner, buf.of(me), partner, buf.of(partner)); err != nil {
		return err
	}
	latest := me / 2 // the pair whose chunks arrived last
	// The direction alternates. So each step brings a pair of chunks that is adjacent to the chunks
	// that this rank has, on their left and on their right in turn.
	for step := 1; step < n/2; step++ {
		side = -side
		partner, incoming := modulo(me+side, n), modulo(me/2+side*((step+1)/2), n/2)
		if err := r.Exchange(ctx, partner, buf.span(2*latest, 2*latest+2), partner, buf.span(2*incoming, 2*incoming+2)); err != nil {
			return err
		}
		latest = incoming
	}
	return nil
}
