package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
)

// hierarchicalBarrier returns when every rank has called it.
//
// On each host one rank, the leader, waits for the host's other ranks. The leaders run a
// dissemination barrier. Then each leader releases the ranks of its host. With four ranks on two
// hosts:
//
//	         step 0   step 1   step 2
//	rank 0            → 2      → 1
//	rank 1   → 0
//	rank 2            → 0      → 3
//	rank 3   → 2
//
// Cost: between h hosts ⌈log₂h⌉α; on each host that of all reporting to one, and of a broadcast
// of nothing.
//
// Nothing is folded.
func hierarchicalBarrier(ctx context.Context, r *p2p.Round) error {
	host := r.Host()
	if err := gatherOnHost(ctx, host); err != nil {
		return err
	}
	if among := crossHost(r, 0); among != nil {
		if err := disseminationBarrier(ctx, among); err != nil {
			return err
		}
	}
	return releaseOnHost(ctx, host)
}

// gatherOnHost returns on the first rank of a host when the host's other ranks have called
// gatherOnHost. On the other ranks it returns at once.
func gatherOnHost(ctx context.Context, host *p2p.Round) error {
	if !host.HasShared() {
		return linearGather(ctx, host, 0, cutEvenly(nil, host.Size(), 1), nil)
	}
	p := host.Fragments(1, 0)
	if err := p.AwaitFree(ctx); err != nil {
		return err
	}
	if host.Rank() == 0 {
		for rank := 1; rank < host.Size(); rank++ {
			if err := p.AwaitDone(ctx, rank); err != nil {
				return err
			}
		}
	}
	p.SetDone()
	return nil
}

// releaseOnHost returns when the first rank of the host has called releaseOnHost.
func releaseOnHost(ctx context.Context, host *p2p.Round) error {
	if !host.HasShared() {
		return binomialBroadcast(ctx, host, 0, nil)
	}
	p := host.Fragments(1, 0)
	if err := p.AwaitFree(ctx); err != nil {
		return err
	}
	if host.Rank() > 0 {
		if err := p.AwaitDone(ctx, 0); err != nil {
			return err
		}
	}
	p.SetDone()
	return nil
}
