package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
)

// binomialScatter leaves in dst, on every rank, its chunk of the root's src. All
// chunks are equally long. The root's dst may be its chunk of src.
//
// Chunks come down a binomial tree: every rank is sent its subtree's together.
// With six ranks, from root 0:
//
//	         step 0   step 1   step 2
//	rank 0   45 → 4   23 → 2   1 → 1
//	rank 2                     3 → 3
//	rank 4            5 → 5
//
// Cost: ⌈log₂n⌉α + m(n-1)/n β, and up to m bytes of scratch memory on ranks that
// pass chunks on, and on the root unless it is rank 0.
//
// Nothing is folded. From another root, ranks are counted from it on.
func binomialScatter(ctx context.Context, r *p2p.Round, root int, dst []byte, src chunks) error {
	t := treeFrom(r, root)
	size := len(dst)
	run := dst // the chunks of this rank's subtree, its own first
	switch {
	case t.me == 0 && root == 0:
		run = src.buf
	case t.size() > 1:
		run = r.Scratch(t.size() * size)
	}
	switch {
	case t.me != 0:
		if err := r.Recv(ctx, t.parent(), run); err != nil {
			return err
		}
	case root != 0:
		first := (t.n - root) * size
		copy(run[:first], src.buf[root*size:])
		copy(run[first:], src.buf)
	default:
		// The chunks are in their places.
	}
	for distance := t.width / 2; distance > 0; distance /= 2 {
		if t.below(distance) <= 0 {
			continue
		}
		leaving := run[distance*size:][:t.below(distance)*size]
		if err := r.Send(ctx, t.rank(t.me+distance), leaving); err != nil {
			return err
		}
	}
	put(dst, run[:size])
	return nil
}
