package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// reduceBroadcastAllReduce reduces the vectors that the ranks hold in buf, and leaves the result in
// buf on every rank.
//
// The vectors are folded up a binomial tree to rank 0, and the result goes down again. The two
// functions are binomialReduce and binomialBroadcast. With four ranks:
//
//	         step 0   step 1   step 2     step 3
//	rank 0                     0123 → 2   0123 → 1
//	rank 1   1 → 0
//	rank 2            23 → 0              0123 → 3
//	rank 3   3 → 2
//
// Cost: 2⌈log₂n⌉(α + mβ) + ⌈log₂n⌉mγ, and m bytes of scratch memory on some ranks.
//
// Neighbouring blocks of ranks are folded, the lower block as the earlier operand. Where hosts are
// in rank order, the order depends on n alone. Otherwise operators that commute are folded in the
// order of hosts and racks, as in binomialReduce, and other operators in rank order. All ranks get
// a copy of rank 0's result, so equal runs give equal bits on all ranks. The operator need not
// commute.
func reduceBroadcastAllReduce(ctx context.Context, r *p2p.Round, buf []byte, k reduce.Kernel) error {
	if err := binomialReduce(ctx, r, 0, buf, buf, k); err != nil {
		return err
	}
	if r.Rank() == 0 {
		k.Finish(buf, r.Size())
	}
	return binomialBroadcast(ctx, r, 0, buf)
}
