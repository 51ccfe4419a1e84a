package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
)

// sharedAllGather leaves on every rank all ranks' chunks; own is this rank's.
//
// Piece by piece, every rank copies of its chunk into its slot, and to its place, and
// takes what lies in the others' slots. With two ranks:
//
//	         step 0       step 1
//	rank 0   A → slot 0   A ← slot 0, B ← slot 1
//	rank 1   B → slot 1   A ← slot 0, B ← slot 1
//
// The drawing cannot tell a slot from what was copied into it: a rank's own chunk comes
// from where it was, and not at all when it lies in its place.
//
// Cost: α + mβ, in cache; α for each piece.
func sharedAllGather(ctx context.Context, r *p2p.Round, buf chunks, own []byte) error {
	n, me := r.Size(), r.Rank()
	longest := buf.longest()
	count := pieceCount(longest, p2p.SlotSize)
	p := r.Pieces(count, longest)
	move := outward(n * len(buf.buf))
	placed := same(buf.of(me), own)
	put := func(p p2p.Piece, i int) { copy(p.Slot(me), window(own, i, p2p.SlotSize)) }
	take := func(p p2p.Piece, i, rank int) {
		switch {
		case rank != me:
			move(window(buf.of(rank), i, p2p.SlotSize), p.Slot(rank))
		case !placed: // what has just been read is in the cache still
			move(window(buf.of(me), i, p2p.SlotSize), window(own, i, p2p.SlotSize))
		}
	}
	return handRound(ctx, r, p, count, put, take)
}
