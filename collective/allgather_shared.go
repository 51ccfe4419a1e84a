package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
)

// sharedAllGather leaves on every rank all ranks' chunks; buf holds its own.
//
// Piece by piece, every rank copies of its chunk into its slot, and takes what
// lies in the others' slots. With two ranks:
//
//	         step 0       step 1
//	rank 0   A → slot 0   B ← slot 1
//	rank 1   B → slot 1   A ← slot 0
//
// Cost: α + mβ, in cache; α for each piece.
func sharedAllGather(ctx context.Context, r *p2p.Round, buf chunks) error {
	n, me := r.Size(), r.Rank()
	longest := buf.longest()
	count := pieceCount(longest, p2p.SlotSize)
	p := r.Pieces(count, longest)
	move := outward(n * len(buf.buf))
	for i := range count {
		if err := p.Claim(ctx); err != nil {
			return err
		}
		copy(p.Slot(me), window(buf.of(me), i, p2p.SlotSize))
		p.Done()
		for d := 1; d < n; d++ {
			rank := mod(me+d, n)
			if err := p.AwaitDone(ctx, rank); err != nil {
				return err
			}
			move(window(buf.of(rank), i, p2p.SlotSize), p.Slot(rank))
		}
		p = p.Next()
	}
	return nil
}
