package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
)

// binomialBroadcast leaves the root's buf on every rank.
//
// In every step each rank that has the vector sends it to one that has not. With
// six ranks, from root 0:
//
//	         step 0   step 1   step 2
//	rank 0   → 4      → 2      → 1
//	rank 2                     → 3
//	rank 4            → 5
//
// Cost: ⌈log₂n⌉(α + mβ).
//
// Nothing is folded. From another root, ranks are counted from it on.
//
// The tree is that of van de Geijn, "On global combine operations", JPDC 22(2), 1994.
func binomialBroadcast(ctx context.Context, r *p2p.Round, root int, buf []byte) error {
	t := treeFrom(r, root)
	if t.me != 0 {
		if err := r.Recv(ctx, t.parent(), buf); err != nil {
			return err
		}
	}
	for distance := t.width / 2; distance > 0; distance /= 2 {
		if t.below(distance) <= 0 {
			continue
		}
		if err := r.Send(ctx, t.rank(t.me+distance), buf); err != nil {
			return err
		}
	}
	return nil
}
