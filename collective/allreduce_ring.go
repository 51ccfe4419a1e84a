package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// ringAllReduce reduces the vectors that the ranks hold in src, and leaves the result in dst on
// every rank.
//
// Every chunk goes around the ring twice. First ringReduceScatter reduces it, and then
// ringAllGather broadcasts it. With three ranks:
//
//	          step 0   step 1   step 2   step 3
//	chunk 0   1 → 2    2 → 0    0 → 1    1 → 2
//	chunk 1   2 → 0    0 → 1    1 → 2    2 → 0
//	chunk 2   0 → 1    1 → 2    2 → 0    0 → 1
//
// Cost: 2(n-1)α + 2m(n-1)/n β + m(n-1)/n γ. No algorithm moves fewer bytes.
//
// Shares are folded into chunk c in the order c+1, c+2, …, c, one after the other. Where ranks are
// on several hosts, c+1 stands for the rank that follows c in the order of hosts and racks. The
// order depends on n, that placement and the chunk alone, and every chunk is folded on one rank, so
// equal runs give equal bits on all ranks. The order is not rank order, so the operator must
// commute.
//
// Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
// JPDC 69(2), 2009.
func ringAllReduce(ctx context.Context, r *p2p.Round, dst, src []byte, k reduce.Kernel) error {
	all := evenChunks(r, dst, k.DType().Size())
	if err := ringReduceScatterAcross(ctx, r, all, all.withBuffer(src), k); err != nil {
		return err
	}
	k.Finish(all.of(r.Rank()), r.Size())
	return ringAllGather(ctx, r, all)
}
