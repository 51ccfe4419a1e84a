package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// hierarchicalReduce reduces the vectors that the ranks hold in src, and leaves the result in dst
// on the root. dst may be the same memory as src, and is ignored on other ranks.
//
// On each host one rank reduces the host's vectors; on the root's host, this rank is the root.
// The results go up a binomial tree of these ranks. With six ranks on three hosts, to root 1:
//
//	         step 0   step 1   step 2
//	rank 0   0 → 1
//	rank 2            23 → 1
//	rank 3   3 → 2
//	rank 4                     45 → 1
//	rank 5   5 → 4
//
// Cost: between h hosts ⌈log₂h⌉(α + mβ + mγ); on each host that of a reduction; 2m bytes of
// scratch memory on some ranks.
//
// Shares of a host are folded in the order of its ranks, one after the other. Hosts are counted
// from the root's host in the order of racks. Neighbouring blocks of hosts are folded next, the
// first block as the earlier operand. The order depends on the placement and the root's host alone,
// so equal runs give equal bits, with or without shared memory. The order is not rank order, so the
// operator must commute.
func hierarchicalReduce(ctx context.Context, r *p2p.Round, root int, dst, src []byte, k reduce.Kernel) error {
	among := leaders(r, root)
	folded := dst
	if among != nil && r.Rank() != root {
		folded = r.Scratch(len(src))
	}
	// reduceOnHost leaves the result of each host on the host's leader. binomialReduce folds the
	// results of the leaders. The root is the leader of its host, so it gets the final result.
	if err := reduceOnHost(ctx, r.Host(), leaderOf(r, root), folded, src, k); err != nil {
		return err
	}
	if among == nil {
		return nil
	}
	return binomialReduce(ctx, among, r.Layout().HostOf(root), dst, folded, k)
}
