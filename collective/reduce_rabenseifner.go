package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// rabenseifnerReduce reduces the vectors that the ranks hold in src, and leaves the result in dst
// on the root. dst may be the same memory as src, and is ignored on other ranks.
//
// In step s, partners at distance 2^s each fold one half of the part that both still have. Then
// the root gathers the folded parts in the opposite order of steps. Ranks beyond the largest
// power of two send their share to a neighbour first, except the root. With five ranks, to root
// 0, and in brackets the ranks whose shares are folded:
//
//	         step 0         step 1       step 2       step 3         step 4
//	rank 0                  34(01) → 2   2(012) → 3
//	rank 1   01234(1) → 0
//	rank 2                  012(2) → 0   4(012) → 4                  34(01234) → 0
//	rank 3   34(3) → 4                   01(34) → 0   2(01234) → 0
//	rank 4   012(4) → 3                  3(34) → 2    4(01234) → 2
//
// Cost: 2⌊log₂n⌋α + 2m(p-1)/p β + m(p-1)/p γ, where p is the power of two up to n, and α + mβ +
// mγ more unless n is one; m bytes of scratch memory.
//
// Neighbouring blocks of ranks are folded, the lower block as the earlier operand. The order
// depends on n alone, so equal runs give equal bits, whatever the root. The order is rank order, so
// the operator need not commute.
//
// Rabenseifner, "Optimization of collective reduction operations", ICCS 2004.
func rabenseifnerReduce(ctx context.Context, r *p2p.Round, root int, dst, src []byte, k reduce.Kernel) error {
	d := hypercubeOf(r, root)
	if d.isExtra() {
		return r.Send(ctx, d.neighbour(), src)
	}
	work := dst
	if r.Rank() != root {
		work = r.Scratch(len(src))
	}
	copyUnlessSame(work, src)
	if err := d.foldExtra(ctx, r, work, k); err != nil {
		return err
	}
	parts := cutEvenly(work, d.power, k.DType().Size())
	own, err := d.reduceScatter(ctx, r, parts, k)
	if err != nil {
		return err
	}
	return d.gather(ctx, r, parts, own)
}
