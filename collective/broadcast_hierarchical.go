package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
)

// hierarchicalBroadcast copies buf from the root to every rank.
//
// The vector goes down a binomial tree that has one rank of each host. Each of these ranks
// broadcasts the vector on its host. With six ranks on three hosts, from root 1:
//
//	         step 0   step 1   step 2
//	rank 1   → 4      → 2      → 0
//	rank 2                     → 3
//	rank 4            → 5
//
// Cost: between h hosts ⌈log₂h⌉(α + mβ); on each host that of a broadcast.
//
// Nothing is folded. Hosts are counted in the order of racks, beginning with the root's host.
// The vector enters every host and every rack once, except the root's own.
func hierarchicalBroadcast(ctx context.Context, r *p2p.Round, root int, buf []byte) error {
	if among := leaders(r, root); among != nil {
		if err := binomialBroadcast(ctx, among, r.Layout().HostOf(root), buf); err != nil {
			return err
		}
	}
	return broadcastOnHost(ctx, r.Host(), leaderOf(r, root), buf)
}
