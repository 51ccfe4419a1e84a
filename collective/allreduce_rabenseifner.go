package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// rabenseifnerAllReduce reduces the vectors that the ranks hold in buf, and leaves the result in
// buf on every rank.
//
// In step s, partners at distance 2^s halve the part that both still have, and each of them folds
// one half. Then they exchange the finished parts in the opposite order of steps. Ranks beyond the
// largest power of two send their share to a neighbour first, and receive the result last. With
// five ranks, and in brackets the ranks whose shares are folded:
//
//	         step 0         step 1       step 2       step 3          step 4           step 5
//	rank 0                  34(01) → 2   2(012) → 3   01(01234) → 3   012(01234) → 2   01234(01234) → 1
//	rank 1   01234(1) → 0
//	rank 2                  012(2) → 0   4(012) → 4   3(01234) → 4    34(01234) → 0
//	rank 3   34(3) → 4                   01(34) → 0   2(01234) → 0    012(01234) → 4
//	rank 4   012(4) → 3                  3(34) → 2    4(01234) → 2    34(01234) → 3
//
// Cost: 2⌊log₂n⌋α + 2m(p-1)/p β + m(p-1)/p γ, where p is the power of two up to n, and 2α + 2mβ
// + mγ more unless n is one.
//
// Neighbouring blocks of ranks are folded, the lower block as the earlier operand. The order is the
// same as in recursiveDoublingAllReduce, so the bits are the same, too. Every part is folded on one
// rank, so equal runs give equal bits on all ranks. The order is rank order, so the operator need
// not commute.
//
// Rabenseifner, "Optimization of collective reduction operations", ICCS 2004. As in that paper,
// the nearest partners come first.
func rabenseifnerAllReduce(ctx context.Context, r *p2p.Round, buf []byte, k reduce.Kernel) error {
	d := hypercubeOf(r, 0)
	if d.isExtra() {
		return sendAndAwaitResult(ctx, r, d.neighbour(), buf)
	}
	if err := d.foldExtra(ctx, r, buf, k); err != nil {
		return err
	}
	// The number of parts, one per vertex, is a power of two, so every step halves it evenly.
	parts := cutEvenly(buf, d.power, k.DType().Size())
	own, err := d.reduceScatter(ctx, r, parts, k)
	if err != nil {
		return err
	}
	// Finish each part once, on the rank that has folded it, before the part is copied.
	k.Finish(parts.of(own), r.Size())
	if err := d.allGather(ctx, r, parts, own); err != nil {
		return err
	}
	if d.isProxy() {
		return r.Send(ctx, d.neighbour(), buf)
	}
	return nil
}
