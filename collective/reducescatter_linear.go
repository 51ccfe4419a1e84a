package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// linearReduceScatter reduces chunk r of the vectors that the ranks hold in src, and leaves the
// result in dst on each rank r. dst may be that chunk of src. The rest of src is not changed.
//
// Rank 0 receives all vectors, in rank order, and scatters the chunks. The two functions are
// linearReduce and linearScatter. The algorithm is the baseline for measurements of the other
// algorithms. With three ranks:
//
//	         step 0   step 1   step 2    step 3
//	rank 0                     012 → 1   012 → 2
//	rank 1   1 → 0
//	rank 2            2 → 0
//
// Cost: 2(n-1)α + m(n-1)(n+1)/n β + m(n-1)γ, and m bytes of scratch memory on rank 0.
//
// Shares are folded in the order 0, 1, …, n-1, one after the other. The result has the bits of a
// serial loop over the ranks. The operator need not commute.
func linearReduceScatter(ctx context.Context, r *p2p.Round, dst []byte, src chunks, k reduce.Kernel) error {
	var all chunks
	if r.Rank() == 0 {
		all = src.withBuffer(r.Scratch(len(src.buf)))
	}
	if err := linearReduce(ctx, r, 0, all.buf, src.buf, k); err != nil {
		return err
	}
	return linearScatter(ctx, r, 0, dst, all)
}
