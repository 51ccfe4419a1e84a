package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
)

// binomialGather gathers one chunk from each rank. Every rank passes its chunk in src, and the root
// receives all chunks in dst. All chunks are equally long. On the root, src may be its chunk of
// dst.
//
// Chunks are gathered up a binomial tree. Every rank sends the chunks of its subtree in one
// message. With six ranks, to root 0:
//
//	         step 0   step 1   step 2
//	rank 1   1 → 0
//	rank 2            23 → 0
//	rank 3   3 → 2
//	rank 4                     45 → 0
//	rank 5   5 → 4
//
// Cost: ⌈log₂n⌉α + m(n-1)/n β, and up to two steps more where there are several hosts; up to m
// bytes of scratch memory on ranks that pass chunks on, and on the root unless it is rank 0 and
// hosts are in rank order.
//
// Nothing is folded. If the root is another rank, ranks are counted from the root in the order
// of hosts and racks. The tree connects the first ranks of the racks, then within each rack the
// first ranks of its hosts, then within each host its ranks. So all chunks of a host or a rack
// leave it in one message.
func binomialGather(ctx context.Context, r *p2p.Round, root int, dst chunks, src []byte) error {
	t := treeFrom(r, root)
	size := len(src)
	// A leaf sends its own chunk. An inner node needs memory for its subtree. If node numbers are
	// ranks, the root uses dst as this memory.
	run := src // the chunks of this rank's subtree, beginning with its own chunk
	switch {
	case t.me == 0 && t.inRankOrder(r):
		run = dst.buf
	case t.size() > 1:
		run = r.Scratch(t.size() * size)
	}
	copyUnlessSame(run, src)

	for _, child := range t.children() {
		incoming := run[(child.node-t.me)*size:][:child.size*size]
		if err := r.Recv(ctx, child.rank, incoming); err != nil {
			return err
		}
	}
	if t.me != 0 {
		return r.Send(ctx, t.parent(), run)
	}
	for node := 0; node < t.n && !same(run, dst.buf); node++ {
		copy(dst.of(t.walk.Rank(node)), run[node*size:][:size])
	}
	return nil
}
