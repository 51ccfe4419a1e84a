package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
)

// hierarchicalAllGather gives every rank the chunks of all other ranks. On entry, each rank's own
// chunk is in buf.
//
// The ranks of a host exchange their chunks. One rank of each host takes part in a ring, in
// which all chunks of a host travel together. Then this rank broadcasts the other hosts' chunks
// on its own host. With four ranks on two hosts:
//
//	         step 0   step 1   step 2
//	rank 0   0 → 1    01 → 2   23 → 1
//	rank 1   1 → 0
//	rank 2   2 → 3    23 → 0   01 → 3
//	rank 3   3 → 2
//
// Cost: between h hosts (h-1)α + m(h-1)/h β; on each host that of an allgather of its chunks
// and a broadcast of all others, in two parts; m bytes of scratch memory unless hosts are in
// rank order.
//
// Nothing is folded. Chunks may differ in length; each step then takes the time of the host with
// the longest chunks. The ring passes hosts in the order of racks.
func hierarchicalAllGather(ctx context.Context, r *p2p.Round, buf chunks) error {
	v := permute(r, buf)
	host, own := r.Host(), v.ownHost()
	copyUnlessSame(own.of(host.Rank()), buf.of(r.Rank()))
	if err := allGatherOnHost(ctx, host, own); err != nil {
		return err
	}
	if among := crossHost(r, 0); among != nil {
		if err := ringAllGather(ctx, among, v.byHost); err != nil {
			return err
		}
	}
	// The host's own chunks lie between these two parts. All ranks of the host already have
	// them.
	before, after := v.otherHosts()
	for _, part := range [...][]byte{before, after} {
		if len(part) == 0 {
			continue
		}
		if err := broadcastOnHost(ctx, host, 0, part); err != nil {
			return err
		}
	}
	v.copyOut()
	return nil
}
