package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
)

// hierarchicalSplitAllReduce reduces the vectors that the ranks hold in buf, and leaves the result
// in buf on every rank.
//
// The vector is cut into as many parts as the smallest host has ranks. On each host, every rank
// folds its part of the host's vectors. The ranks that have the same part on different hosts run a
// ring all-reduce. Then the ranks of a host exchange their parts. With four ranks on two hosts:
//
//	         step 0   step 1   step 2     step 3
//	rank 0   0 → 1    01 → 2   2301 → 2   2301 → 1
//	rank 1   1 → 0    01 → 3   2301 → 3   2301 → 0
//	rank 2   2 → 3    23 → 0   0123 → 0   2301 → 3
//	rank 3   3 → 2    23 → 1   0123 → 1   2301 → 2
//
// Cost: between h hosts 2(h-1)α + 2m(h-1)/h β + m(h-1)/h γ for all parts together; on each host
// that of a reduce-scatter and an allgather; m bytes of scratch memory unless the host's ranks
// share memory.
//
// A part has a chunk for each host. Within a host, shares of chunk c are folded in the order of the
// host's ranks. The results of the hosts are folded in the order c+1, c+2, …, c, where hosts are
// counted in the order of racks. The order depends on the placement and the chunk alone, and every
// chunk is folded on one rank, so equal runs give equal bits on all ranks, with or without shared
// memory. The order is not rank order, so the operator must commute.
//
// The scheme comes from Cho, Finkler, Kung and Hunter, "BlueConnect: decomposing all-reduce for
// deep learning on heterogeneous network hierarchy", MLSys 2019.
func hierarchicalSplitAllReduce(ctx context.Context, r *p2p.Round, buf []byte, k reduce.Kernel) error {
	host := r.Host()
	parts := partsOf(host, buf, r.Layout().MinRanksPerHost(), k.DType().Size())
	if err := reduceScatterOnHost(ctx, host, parts, k); err != nil {
		return err
	}
	// Every host has a rank with each local index below MinRanksPerHost, so each cross-host
	// group has one rank of every host. Ranks with a higher local index have no part, and only
	// receive results.
	if host.Rank() < r.Layout().MinRanksPerHost() {
		among := crossHost(r, host.Rank())
		part := evenChunks(among, parts.of(host.Rank()), k.DType().Size())
		if err := ringReduceScatter(ctx, among, part, k); err != nil {
			return err
		}
		k.Finish(part.of(among.Rank()), r.Size())
		if err := ringAllGather(ctx, among, part); err != nil {
			return err
		}
	}
	return allGatherOnHost(ctx, host, parts)
}

// partsOf cuts buf into the given number of parts, one for each of the first ranks of a host. The
// parts of the other ranks are empty.
func partsOf(host *p2p.Round, buf []byte, parts, elem int) chunks {
	n := host.Size()
	starts := tensor.Elements[int64](host.Scratch(8 * (n + 1)))
	starts[0] = 0
	for i := range n {
		starts[i+1] = int64(len(buf))
		if i < parts {
			_, hi := tensor.Chunk(len(buf)/elem, parts, i)
			starts[i+1] = int64(hi * elem)
		}
	}
	return chunks{buf: buf, n: n, elem: elem, starts: starts}
}
