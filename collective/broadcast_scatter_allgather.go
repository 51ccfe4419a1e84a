package collective

import (
	"context"
	"slices"

	"github.com/tutti-go/tutti/p2p"
)

// scatterAllGatherBroadcast copies buf from the root to every rank.
//
// The root scatters one chunk to each rank through a binomial tree. Then all chunks go around a
// ring. With four ranks, from root 0:
//
//	         step 0   step 1   step 2   step 3   step 4
//	rank 0   23 → 2   1 → 1    0 → 1    3 → 1    2 → 1
//	rank 1                     1 → 2    0 → 2    3 → 2
//	rank 2            3 → 3    2 → 3    1 → 3    0 → 3
//	rank 3                     3 → 0    2 → 0    1 → 0
//
// Cost: (⌈log₂n⌉ + n-1)α + 2m(n-1)/n β.
//
// Nothing is folded. If the root is another rank, ranks are counted from the root in the order
// of hosts and racks.
//
// Barnett, Gupta, Payne, Shuler, van de Geijn and Watts, "Interprocessor collective
// communication library (InterCom)", SHPCC 1994.
func scatterAllGatherBroadcast(ctx context.Context, r *p2p.Round, root int, buf []byte) error {
	t := treeFrom(r, root)
	parts := evenChunks(r, buf, 1) // indexed by node, not by rank
	if t.me != 0 {
		if err := r.Recv(ctx, t.parent(), parts.span(t.me, t.me+t.size())); err != nil {
			return err
		}
	}
	for _, child := range slices.Backward(t.children()) {
		if err := r.Send(ctx, child.rank, parts.span(child.node, child.node+child.size)); err != nil {
			return err
		}
	}
	// The ring follows the numbers of the tree's nodes, so each rank starts with its own chunk.
	next, prev := t.walk.Rank(modulo(t.me+1, t.n)), t.walk.Rank(modulo(t.me-1, t.n))
	for step := range t.n - 1 {
		outgoing := parts.of(modulo(t.me-step, t.n))
		incoming := parts.of(modulo(t.me-1-step, t.n))
		if err := r.Exchange(ctx, next, outgoing, prev, incoming); err != nil {
			return err
		}
	}
	return nil
}
