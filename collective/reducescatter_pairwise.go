package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// pairwiseReduceScatter reduces chunk r of the vectors that the ranks hold in src, and leaves the
// result in dst on each rank r. dst may be this rank's chunk of src. The other chunks of src are
// not changed.
//
// Every rank sends its share of a chunk directly to the owner of the chunk. Owner r receives from
// the ranks r-1, …, 0, and then from the ranks n-1, …, r+1. With four ranks:
//
//	          step 0   step 1   step 2
//	chunk 0   3 → 0    2 → 0    1 → 0
//	chunk 1   0 → 1    3 → 1    2 → 1
//	chunk 2   1 → 2    0 → 2    3 → 2
//	chunk 3   2 → 3    1 → 3    0 → 3
//
// Cost: (n-1)α + m(n-1)/n (β+γ), and one chunk of scratch memory.
//
// Chunk r becomes op(a, b), where a is the fold of ranks 0 to r, and b is the fold of the ranks
// after r. Both folds begin at their last rank, so a is op(0, op(1, … op(r-1, r))). The order
// depends on n alone, so equal runs give equal bits. The order is rank order, so the operator need
// not commute.
//
// The exchanges follow the pairwise algorithm for long vectors in Thakur, Rabenseifner and Gropp,
// "Optimization of collective communication operations in MPICH", IJHPCA 19(1), 2005; here a second
// accumulator keeps the fold in rank order.
func pairwiseReduceScatter(ctx context.Context, r *p2p.Round, dst []byte, src chunks, k reduce.Kernel) error {
	n, me := r.Size(), r.Rank()
	before, after := dst, r.Scratch(len(dst))
	copyUnlessSame(before, src.of(me))

	for step := 1; step < n; step++ {
		to, from := modulo(me+step, n), modulo(me-step, n)
		outgoing := src.of(to)
		var err error
		switch {
		case from < me:
			err = r.ExchangeFold(ctx, to, outgoing, from, before, k, p2p.Earlier)
		case from == n-1:
			err = r.Exchange(ctx, to, outgoing, from, after)
		default:
			err = r.ExchangeFold(ctx, to, outgoing, from, after, k, p2p.Earlier)
		}
		if err != nil {
			return err
		}
	}
	if me < n-1 {
		k.Fold(dst, before, after)
	}
	return nil
}
