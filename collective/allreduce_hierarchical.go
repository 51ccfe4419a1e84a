package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// hierarchicalAllReduce reduces the vectors that the ranks hold in buf, and leaves the result in
// buf on every rank.
//
// On each host one rank, the leader, reduces the host's vectors. The leaders run recursive
// doubling among themselves. Then each leader broadcasts the result on its host. With six ranks
// on two hosts:
//
//	         step 0   step 1   step 2    step 3       step 4
//	rank 0                     012 → 3   012345 → 2   012345 → 1
//	rank 1   1 → 0
//	rank 2            2 → 0
//	rank 3                     345 → 0   012345 → 5   012345 → 4
//	rank 4   4 → 3
//	rank 5            5 → 3
//
// Cost: between h hosts ⌊log₂h⌋(α + mβ + mγ), and 2α + 2mβ + mγ more unless h is a power of
// two; on each host that of a reduction and a broadcast.
//
// Shares of a host are folded in the order of its ranks, one after the other. The results of
// neighbouring blocks of hosts are folded next, the earlier block as the earlier operand. The order
// depends on the placement alone, and the result is copied, so equal runs give equal bits on all
// ranks, with or without shared memory. Where hosts are in rank order, folds are in rank order,
// too, and the operator need not commute.
func hierarchicalAllReduce(ctx context.Context, r *p2p.Round, buf []byte, k reduce.Kernel) error {
	host := r.Host()
	if err := reduceOnHost(ctx, host, 0, buf, buf, k); err != nil {
		return err
	}
	if among := crossHost(r, 0); among != nil {
		if err := recursiveDoubling(ctx, among, buf, k, r.Size()); err != nil {
			return err
		}
	}
	return broadcastOnHost(ctx, host, 0, buf)
}
