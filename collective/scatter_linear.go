package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
)

// linearScatter copies one chunk of src from the root to dst on each rank. On the root, dst may be
// its chunk of src. src is ignored on the other ranks.
//
// The root sends the chunks one after the other. With four ranks, from root 1:
//
//	          step 0   step 1   step 2
//	chunk 0   1 → 0
//	chunk 2            1 → 2
//	chunk 3                     1 → 3
//
// Cost: (n-1)α + m(n-1)/n β.
//
// Nothing is folded. Chunks may differ in length.
func linearScatter(ctx context.Context, r *p2p.Round, root int, dst []byte, src chunks) error {
	if r.Rank() != root {
		return r.Recv(ctx, root, dst)
	}
	copyUnlessSame(dst, src.of(root))
	for to := range r.Size() {
		if to == root {
			continue
		}
		if err := r.Send(ctx, to, src.of(to)); err != nil {
			return err
		}
	}
	return nil
}
