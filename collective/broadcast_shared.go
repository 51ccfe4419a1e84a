package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
)

// sharedBroadcast leaves the root's buf on every rank.
//
// Piece by piece, the root copies into its slot, and the others copy out of it.
// With three ranks, from root 0:
//
//	         step 0       step 1       step 2       step 3
//	rank 0   A → slot 0   B → slot 0   C → slot 0
//	rank 1                A ← slot 0   B ← slot 0   C ← slot 0
//	rank 2                A ← slot 0   B ← slot 0   C ← slot 0
//
// The root is up to two pieces ahead of the slowest.
//
// Cost: α + mβ, in cache: in and out at the same time; α for each piece.
func sharedBroadcast(ctx context.Context, r *p2p.Round, root int, buf []byte) error {
	const step = p2p.SmallSize // the notes stay in the first-level cache
	count := pieceCount(len(buf), step)
	p := r.Pieces(count, min(len(buf), step))
	move := outward((r.Size() - 1) * len(buf))
	for i := range count {
		part := window(buf, i, step)
		if r.Rank() == root {
			if err := p.Claim(ctx); err != nil {
				return err
			}
			copy(p.Slot(root), part)
			p.Done()
		} else {
			if err := p.AwaitDone(ctx, root); err != nil {
				return err
			}
			move(part, p.Slot(root))
			p.Done()
		}
		p = p.Next()
	}
	return nil
}
