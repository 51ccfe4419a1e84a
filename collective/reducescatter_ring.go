package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// ringReduceScatter reduces chunk r of all ranks, and leaves the result in buf on each rank r.
//
// A chunk goes around the ring once. It starts at the rank after its owner. Each rank that it
// passes adds its share, and the chunk is complete when it arrives at its owner. With four ranks:
//
//	          step 0   step 1   step 2
//	chunk 0   1 → 2    2 → 3    3 → 0
//	chunk 1   2 → 3    3 → 0    0 → 1
//	chunk 2   3 → 0    0 → 1    1 → 2
//	chunk 3   0 → 1    1 → 2    2 → 3
//
// Cost: (n-1)α + m(n-1)/n (β+γ).
//
// Shares are folded into chunk r in the order r+1, r+2, …, r, one after the other. Where ranks are
// on several hosts, r+1 stands for the rank that follows r in the order of hosts and racks, so that
// in each step one message enters each host and one message leaves it. The order depends on n and
// that placement alone, so equal runs give equal bits. The order is not rank order, so the operator
// must commute. The other chunks of buf hold partial folds afterwards.
//
// This is the first half of the ring all-reduce of Patarasuk and Yuan, "Bandwidth optimal
// all-reduce algorithms for clusters of workstations", JPDC 69(2), 2009.
func ringReduceScatter(ctx context.Context, r *p2p.Round, buf chunks, k reduce.Kernel) error {
	ring := ringOrderOf(r)
	next, prev := ring.at(1), ring.at(-1)

	for step := range ring.n - 1 {
		outgoing := buf.of(ring.at(-1 - step))
		partial := buf.of(ring.at(-2 - step))
		// partial = op(arrived, partial), segment by segment as it arrives
		if err := r.ExchangeFold(ctx, next, outgoing, prev, partial, k, p2p.Earlier); err != nil {
			return err
		}
	}
	return nil
}

// ringReduceScatterAcross is like ringReduceScatter, from src to dst. The two may be the same
// memory. If they differ, each chunk arrives at its position in dst and is folded there.
func ringReduceScatterAcross(ctx context.Context, r *p2p.Round, dst, src chunks, k reduce.Kernel) error {
	if same(dst.buf, src.buf) {
		return ringReduceScatter(ctx, r, dst, k)
	}
	ring := ringOrderOf(r)
	if ring.n == 1 {
		copy(dst.buf, src.buf)
	}
	outgoing := src.of(ring.at(-1))
	for step := range ring.n - 1 {
		c := ring.at(-2 - step)
		if err := r.ExchangeFoldTo(ctx, ring.at(1), outgoing, ring.at(-1), dst.of(c), src.of(c), k, p2p.Earlier); err != nil {
			return err
		}
		outgoing = dst.of(c)
	}
	return nil
}

// ringReduceScatterTo is like ringReduceScatter, from src to dst. dst has room only for this rank's
// chunk. It may be that chunk of src.
func ringReduceScatterTo(ctx context.Context, r *p2p.Round, dst []byte, src chunks, k reduce.Kernel) error {
	work := src.withBuffer(r.Scratch(len(src.buf)))
	if err := ringReduceScatterAcross(ctx, r, work, src, k); err != nil {
		return err
	}
	copy(dst, work.of(r.Rank()))
	return nil
}
