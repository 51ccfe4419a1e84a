package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
)

// binomialGather leaves in dst, on the root, the src of every rank as its chunk.
// All chunks are equally long. The root's src may be its chunk of dst.
//
// Chunks gather up a binomial tree: every rank sends its subtree's together. With
// six ranks, to root 0:
//
//	         step 0   step 1   step 2
//	rank 1   1 → 0
//	rank 2            23 → 0
//	rank 3   3 → 2
//	rank 4                     45 → 0
//	rank 5   5 → 4
//
// Cost: ⌈log₂n⌉α + m(n-1)/n β, and up to m bytes of scratch memory on ranks that
// pass chunks on, and on the root unless it is rank 0.
//
// Nothing is folded. To another root, ranks are counted from it on.
func binomialGather(ctx context.Context, r *p2p.Round, root int, dst chunks, src []byte) error {
	t := treeFrom(r, root)
	size := len(src)
	run := src // the chunks of this rank's subtree, its own first
	switch {
	case t.me == 0 && root == 0:
		run = dst.buf
	case t.size() > 1:
		run = r.Scratch(t.size() * size)
	}
	put(run, src)

	for distance := 1; distance < t.width && t.below(distance) > 0; distance *= 2 {
		arriving := run[distance*size:][:t.below(distance)*size]
		if err := r.Recv(ctx, t.rank(t.me+distance), arriving); err != nil {
			return err
		}
	}
	switch {
	case t.me != 0:
		return r.Send(ctx, t.parent(), run)
	case root != 0:
		first := (t.n - root) * size
		copy(dst.buf[root*size:], run[:first])
		copy(dst.buf, run[first:])
	default:
		// The chunks are in their places.
	}
	return nil
}
