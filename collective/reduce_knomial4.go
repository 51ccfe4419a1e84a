package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// knomial4Reduce reduces the vectors that the ranks hold in src, and leaves the result in dst on
// the root. dst may be the same memory as src, and is ignored on other ranks.
//
// Vectors are folded up a 4-nomial tree. In every level, three of four ranks send their folds to
// the fourth. With six ranks, to root 0:
//
//	         step 0   step 1   step 2   step 3
//	rank 1   1 → 0
//	rank 2            2 → 0
//	rank 3                     3 → 0
//	rank 4                              45 → 0
//	rank 5   5 → 4
//
// Cost: at most 3⌈log₄n⌉(α + mβ + mγ), and m bytes of scratch memory on some ranks.
//
// Neighbouring blocks of ranks are folded, counted from the root on in the order of hosts and
// racks, one after the other. The order depends on n, that placement and the root alone, so equal
// runs give equal bits. With root 0, the order is rank order, unless the hosts' ranks are
// interleaved. In all other cases the operator must commute.
//
// MPICH uses the same k-nomial trees: src/mpi/coll/reduce/reduce_intra_tree.c.
func knomial4Reduce(ctx context.Context, r *p2p.Round, root int, dst, src []byte, k reduce.Kernel) error {
	t := knomialFrom(r, root)
	// A leaf sends its share as it is, and needs no memory.
	gathered := src
	switch {
	case t.me == 0:
		gathered = dst
	case t.width > 1:
		gathered = r.Scratch(len(src))
	}
	copyUnlessSame(gathered, src)

	for distance := 1; distance < t.width; distance *= radix {
		for child := t.me + distance; child < min(t.me+radix*distance, t.n); child += distance {
			if err := r.RecvFold(ctx, t.nodes.Rank(child), gathered, k, p2p.Later); err != nil {
				return err
			}
		}
	}
	if t.me == 0 {
		return nil
	}
	return r.Send(ctx, t.parent(), gathered)
}
