package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
)

// linearGather gathers one chunk from each rank. Every rank passes its chunk in src, and the root
// receives all chunks in dst. On the root, src may be its chunk of dst. dst is ignored on the other
// ranks.
//
// The root receives the chunks one after the other. With four ranks, to root 1:
//
//	          step 0   step 1   step 2
//	chunk 0   0 → 1
//	chunk 2            2 → 1
//	chunk 3                     3 → 1
//
// Cost: (n-1)α + m(n-1)/n β.
//
// Nothing is folded. Chunks may differ in length.
func linearGather(ctx context.Context, r *p2p.Round, root int, dst chunks, src []byte) error {
	if r.Rank() != root {
		return r.Send(ctx, root, src)
	}
	copyUnlessSame(dst.of(root), src)
	for from := range r.Size() {
		if from == root {
			continue
		}
		if err := r.Recv(ctx, from, dst.of(from)); err != nil {
			return err
		}
	}
	return nil
}
