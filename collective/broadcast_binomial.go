package collective

import (
	"context"
	"slices"

	"github.com/tutti-go/tutti/p2p"
)

// binomialBroadcast copies buf from the root to every rank.
//
// In every step, each rank that has the vector sends it to one rank that does not have it. With six
// ranks, from root 0:
//
//	         step 0   step 1   step 2
//	rank 0   → 4      → 2      → 1
//	rank 2                     → 3
//	rank 4            → 5
//
// Cost: ⌈log₂n⌉(α + mβ), and up to two steps more where there are several hosts.
//
// Nothing is folded. If the root is another rank, ranks are counted from the root in the order
// of hosts and racks. The tree connects the first ranks of the racks, then within each rack the
// first ranks of its hosts, then within each host its ranks. So the vector enters every host and
// every rack once, except the root's own.
//
// The tree comes from van de Geijn, "On global combine operations", JPDC 22(2), 1994.
func binomialBroadcast(ctx context.Context, r *p2p.Round, root int, buf []byte) error {
	t := treeFrom(r, root)
	if t.me != 0 {
		if err := r.Recv(ctx, t.parent(), buf); err != nil {
			return err
		}
	}
	for _, child := range slices.Backward(t.children()) {
		if err := r.Send(ctx, child.rank, buf); err != nil {
			return err
		}
	}
	return nil
}
