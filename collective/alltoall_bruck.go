package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
)

// bruckAllToAll copies chunk i of src to rank i, and receives chunk i of dst from rank i. All
// chunks are equally long.
//
// A chunk whose destination is d ranks ahead gets there by jumps of 1, 2, 4, … ranks that add up
// to d. Chunks that jump together travel together. With four ranks, and in brackets where a
// chunk comes from:
//
//	         step 0      step 1
//	rank 0   13(0) → 1   2(0)(3) → 2
//	rank 1   20(1) → 2   3(1)(0) → 3
//	rank 2   31(2) → 3   0(2)(1) → 0
//	rank 3   02(3) → 0   1(3)(2) → 1
//
// Cost: ⌈log₂n⌉α, and at most ⌈log₂n⌉m/2 β; 2m bytes of scratch memory.
//
// Nothing is folded. The algorithm is for short chunks, because each chunk moves up to ⌈log₂n⌉
// times.
//
// Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all communications
// in multiport message-passing systems", IEEE TPDS 8(11), 1997.
func bruckAllToAll(ctx context.Context, r *p2p.Round, dst, src chunks) error {
	n, me := r.Size(), r.Rank()
	size := len(src.of(me))
	// Chunk d starts d ranks from its destination. Each jump reduces the distance.
	ahead := evenChunks(r, r.Scratch(n*size), 1)
	for d := range n {
		copy(ahead.of(d), src.of(modulo(me+d, n)))
	}
	// A jump moves at most half of the chunks.
	half := (n + 1) / 2 * size
	outgoing, incoming := r.Scratch(half), r.Scratch(half)
	for jump := 1; jump < n; jump *= 2 {
		packed := 0
		// The loop visits the chunks whose distance, as a sum of jumps, contains this jump.
		for d := jump; d < n; d = (d + 1) | jump {
			packed += copy(outgoing[packed:], ahead.of(d))
		}
		if err := r.Exchange(ctx, modulo(me+jump, n), outgoing[:packed], modulo(me-jump, n), incoming[:packed]); err != nil {
			return err
		}
		unpacked := 0
		for d := jump; d < n; d = (d + 1) | jump {
			unpacked += copy(ahead.of(d), incoming[unpacked:])
		}
	}
	for d := range n {
		copy(dst.of(modulo(me-d, n)), ahead.of(d))
	}
	return nil
}
