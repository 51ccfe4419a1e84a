package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
)

// hierarchicalBroadcast copies the root's buf to every rank.
//
// It goes down a binomial tree of one rank of each host, and each broadcasts it on its host.
// With six ranks on three hosts, from root 1:
//
//	         step 0   step 1   step 2
//	rank 1   → 4      → 2      → 0
//	rank 2                     → 3
//	rank 4            → 5
//
// Cost: between h hosts ⌈log₂h⌉(α + mβ); on each host that of a broadcast.
//
// Nothing is folded. Hosts are counted from the root's on in the order of racks, and every host
// and every rack but the root's is entered once.
func hierarchicalBroadcast(ctx context.Context, r *p2p.Round, root int, buf []byte) error {
	if among := leaders(r, root); among != nil {
		if err := binomialBroadcast(ctx, among, r.Layout().HostOf(root), buf); err != nil {
			return err
		}
	}
	return broadcastOnHost(ctx, r.Host(), leaderOf(r, root), buf)
}
