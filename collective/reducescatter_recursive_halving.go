package collective

import (
	"context"
	"math/bits"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
)

// recursiveHalvingReduceScatter reduces chunk r of the vectors that the ranks hold in src, and
// leaves the result in dst on each rank r. dst may be that chunk of src. The rest of src is not
// changed.
//
// Partners at distance 1, 2, 4, … halve the chunks that they still have, and each of them folds one
// half. In each step, one bit of a chunk's vertex number determines the partner that folds the
// chunk. Ranks beyond the largest power of two send their share to a neighbour first, and receive
// their chunk last. With five ranks, and in brackets the ranks whose shares are folded:
//
//	         step 0         step 1       step 2       step 3
//	rank 0                  24(01) → 2   3(012) → 3   1(01234) → 1
//	rank 1   01324(1) → 0
//	rank 2                  013(2) → 0   4(012) → 4
//	rank 3   24(3) → 4                   01(34) → 0
//	rank 4   013(4) → 3                  2(34) → 2
//
// Cost: ⌊log₂n⌋α + m(n-1)/n (β+γ) for a power of two. Else 2α more, and in all at most
// m(2+2/n)β + 2mγ. m bytes of scratch memory.
//
// Neighbouring blocks of ranks are folded, the lower block as the earlier operand. The order
// depends on n alone, so equal runs give equal bits. The order is rank order, so the operator need
// not commute.
//
// Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
// IJHPCA 19(1), 2005, section 4.4; there the farthest partners come first, so operators must
// commute.
func recursiveHalvingReduceScatter(ctx context.Context, r *p2p.Round, dst []byte, src chunks, k reduce.Kernel) error {
	d := hypercubeOf(r, 0)
	work := d.bitReversed(r, src)
	if d.isExtra() {
		if err := r.Send(ctx, d.neighbour(), work.buf); err != nil {
			return err
		}
		return r.Recv(ctx, d.neighbour(), dst)
	}
	if err := d.foldExtra(ctx, r, work.buf, k); err != nil {
		return err
	}
	own, err := d.reduceScatter(ctx, r, work, k)
	if err != nil {
		return err
	}
	// A proxy's part holds two chunks: its own chunk, and then the chunk of its extra rank.
	mine := work.of(own)
	copy(dst, mine)
	if d.isProxy() {
		return r.Send(ctx, d.neighbour(), mine[len(dst):])
	}
	return nil
}

// bitReversed returns a copy of src with one chunk per vertex, which holds the chunks of the
// vertex's ranks. The vertices are in bit-reversed order, because reduceScatter leaves the chunks
// in that order.
func (d foldedHypercube) bitReversed(r *p2p.Round, src chunks) chunks {
	c := cutEvenly(r.Scratch(len(src.buf)), d.power, src.elem)
	c.starts = tensor.Elements[int64](r.Scratch(8 * (d.power + 1)))
	c.starts[0] = 0
	for i := range d.power {
		vertex := bits.Reverse(uint(i)) >> (bits.UintSize - bits.TrailingZeros(uint(d.power)))
		n := copy(c.buf[c.starts[i]:], src.span(d.first(int(vertex)), d.first(int(vertex)+1)))
		c.starts[i+1] = c.starts[i] + int64(n)
	}
	return c
}
