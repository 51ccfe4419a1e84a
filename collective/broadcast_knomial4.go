package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
)

// knomial4Broadcast copies buf from the root to every rank.
//
// In every level, each rank that has the vector sends it to three ranks that do not have it. With
// six ranks, from root 0:
//
//	         step 0   step 1   step 2   step 3
//	rank 0   → 4      → 1      → 2      → 3
//	rank 4            → 5
//
// Cost: at most 3⌈log₄n⌉(α + mβ).
//
// Nothing is folded. If the root is another rank, ranks are counted from the root in the order
// of hosts and racks.
//
// MPICH uses the same k-nomial trees: src/mpi/coll/bcast/bcast_intra_tree.c.
func knomial4Broadcast(ctx context.Context, r *p2p.Round, root int, buf []byte) error {
	t := knomialFrom(r, root)
	if t.me != 0 {
		if err := r.Recv(ctx, t.parent(), buf); err != nil {
			return err
		}
	}
	for distance := t.width / radix; distance > 0; distance /= radix {
		for child := t.me + distance; child < min(t.me+radix*distance, t.n); child += distance {
			if err := r.Send(ctx, t.nodes.Rank(child), buf); err != nil {
				return err
			}
		}
	}
	return nil
}
