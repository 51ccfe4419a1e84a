package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// linearReduce reduces the vectors that the ranks hold in src, and leaves the result in dst on the
// root. dst may be the same memory as src, and is ignored on other ranks.
//
// The root receives the vectors one after the other. With four ranks, to root 1:
//
//	         step 0   step 1   step 2
//	rank 0   0 → 1
//	rank 2            2 → 1
//	rank 3                     3 → 1
//
// Cost: (n-1)(α + mβ + mγ), and m bytes of scratch memory on the root unless it is rank 0.
//
// Shares are folded in the order 0, 1, …, n-1, one after the other. The result has the bits of a
// serial loop over the ranks. The operator need not commute.
func linearReduce(ctx context.Context, r *p2p.Round, root int, dst, src []byte, k reduce.Kernel) error {
	if r.Rank() != root {
		return r.Send(ctx, root, src)
	}
	own := src
	if root != 0 && same(dst, src) {
		own = r.Scratch(len(src)) // a copy, because dst receives rank 0's share first
		copy(own, src)
	}
	// Rank 0's share goes to dst first, even if the root is another rank. Then every fold is
	// op(dst, share of the next rank), in rank order.
	for from := range r.Size() {
		var err error
		switch {
		case from == 0 && root == 0:
			copyUnlessSame(dst, own)
		case from == 0:
			err = r.Recv(ctx, 0, dst)
		case from == root:
			k.Fold(dst, dst, own)
		default:
			err = r.RecvFold(ctx, from, dst, k, p2p.Later)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
