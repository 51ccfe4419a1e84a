package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// segmentedRingAllReduce reduces the vectors that the ranks hold in src, and leaves the result in
// dst on every rank.
//
// It runs ringAllReduce several times, each time over one subrange of every chunk. A subrange is
// short, so it is still in a rank's cache when the rank has folded it and sends it on. One
// subrange, with three ranks:
//
//	          step 0   step 1   step 2   step 3
//	chunk 0   1 → 2    2 → 0    0 → 1    1 → 2
//	chunk 1   2 → 0    0 → 1    1 → 2    2 → 0
//	chunk 2   0 → 1    1 → 2    2 → 0    0 → 1
//
// Cost: 2t(n-1)α + 2m(n-1)/n β + m(n-1)/n γ, for t subranges, of at most two segments of each
// chunk.
//
// Shares are folded into chunk c in the order c+1, c+2, …, c, one after the other. The order is the
// same as in ringAllReduce, so the bits are the same, too. The order is not rank order, so the
// operator must commute.
//
// The subranges are the phases of Open MPI's segmented ring,
// ompi/mca/coll/base/coll_base_allreduce.c.
func segmentedRingAllReduce(ctx context.Context, r *p2p.Round, dst, src []byte, k reduce.Kernel) error {
	all := evenChunks(r, dst, k.DType().Size())
	subrange := ringSubrangeSegments * r.Segment()
	for i := range max(1, fragmentCount(len(all.of(0)), subrange)) { // chunk 0 is a longest chunk
		part := all.subrange(i, subrange)
		if err := ringReduceScatterAcross(ctx, r, part, part.withBuffer(src), k); err != nil {
			return err
		}
		k.Finish(part.of(r.Rank()), r.Size())
		if err := ringAllGather(ctx, r, part); err != nil {
			return err
		}
	}
	return nil
}

// ringSubrangeSegments is the number of segments in a subrange. With two segments, a rank folds one
// segment while the other one arrives.
const ringSubrangeSegments = 2
