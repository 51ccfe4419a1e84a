package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// reduceBroadcastAllReduce reduces the buf of all ranks and leaves the result on every rank.
//
// The vectors are folded up a binomial tree to rank 0, and the result goes down again:
// binomialReduce and binomialBroadcast. With four ranks:
//
//	         step 0   step 1   step 2     step 3
//	rank 0                     0123 → 2   0123 → 1
//	rank 1   1 → 0
//	rank 2            23 → 0              0123 → 3
//	rank 3   3 → 2
//
// Cost: 2⌈log₂n⌉(α + mβ) + ⌈log₂n⌉mγ, and m bytes of scratch memory on some ranks.
//
// Neighbouring blocks of ranks are folded, the lower block as the earlier operand. Where hosts
// are in rank order, the order depends on n alone. Otherwise the order is that of hosts and
// racks, as in binomialReduce, for operators that commute, and rank order for others. Rank 0's
// bits are copied, so equal runs give equal bits on all ranks, and op need not commute.
func reduceBroadcastAllReduce(ctx context.Context, r *p2p.Round, buf []byte, k reduce.Kernel) error {
	if err := binomialReduce(ctx, r, 0, buf, buf, k); err != nil {
		return err
	}
	if r.Rank() == 0 {
		k.Finish(buf, r.Size())
	}
	return binomialBroadcast(ctx, r, 0, buf)
}
