package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
)

// sharedBroadcast leaves the root's buf on every rank.
//
// Piece by piece, the root copies into its slot, and the others copy out of it:
//
//	root    in: A → slot        in: B → slot'       in: C → slot"
//	others                      A out               B out
//
// The root is up to two pieces ahead of the slowest.
//
// Cost: α + mβ, in cache: in and out at the same time; α for each piece.
func sharedBroadcast(ctx context.Context, r *p2p.Round, root int, buf []byte) error {
	const step = p2p.SmallSize // the notes stay in the first-level cache
	count := pieceCount(len(buf), step)
	p := r.Pieces(count, min(len(buf), step))
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
			copy(part, p.Slot(root))
			p.Done()
		}
		p = p.Next()
	}
	return nil
}
