package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// hierarchicalReduceScatter reduces chunk r of the vectors that the ranks hold in src, and leaves
// the result in dst on each rank r. dst may be that chunk of src.
//
// On each host one rank, the leader, reduces the host's vectors. The leaders run the first half
// of a ring all-reduce, in which all chunks of a host travel together. Then each leader scatters
// the chunks on its host. With four ranks on two hosts:
//
//	         step 0   step 1   step 2
//	rank 0            01 → 2   2301 → 1
//	rank 1   1 → 0
//	rank 2            23 → 0   0123 → 3
//	rank 3   3 → 2
//
// Cost: between h hosts (h-1)α + m(h-1)/h (β+γ); on each host that of a reduction of the vector
// and a scatter of its chunks; up to 2m bytes of scratch memory.
//
// Shares of a host are folded in the order of its ranks, one after the other. For the chunks of
// host h, the results of the hosts are folded in the order h+1, h+2, …, h, where hosts are counted
// in the order of racks. The order depends on the placement alone, so equal runs give equal bits,
// with or without shared memory. The order is not rank order, so the operator must commute.
func hierarchicalReduceScatter(ctx context.Context, r *p2p.Round, dst []byte, src chunks, k reduce.Kernel) error {
	v := permute(r, src)
	v.copyIn()
	host, among := r.Host(), crossHost(r, 0)
	var folded []byte
	if among != nil {
		folded = r.Scratch(len(src.buf))
	}
	if err := reduceOnHost(ctx, host, 0, folded, v.byPosition.buf, k); err != nil {
		return err
	}
	if among != nil {
		if err := ringReduceScatter(ctx, among, v.byHost.withBuffer(folded), k); err != nil {
			return err
		}
	}
	// Only rank 0 of the host has folded chunks; on the other ranks the variable folded is nil.
	return linearScatter(ctx, host, 0, dst, v.ownHost().withBuffer(folded))
}
