package collective

import (
	"context"
	"slices"

	"github.com/tutti-go/tutti/p2p"
)

// binomialScatter copies one chunk of src from the root to dst on each rank. All chunks are equally
// long. On the root, dst may be its chunk of src.
//
// Chunks go down a binomial tree. Every rank receives the chunks of its subtree in one message.
// With six ranks, from root 0:
//
//	         step 0   step 1   step 2
//	rank 0   45 → 4   23 → 2   1 → 1
//	rank 2                     3 → 3
//	rank 4            5 → 5
//
// Cost: ⌈log₂n⌉α + m(n-1)/n β, and up to two steps more where there are several hosts; up to m
// bytes of scratch memory on ranks that pass chunks on, and on the root unless it is rank 0 and
// hosts are in rank order.
//
// Nothing is folded. If the root is another rank, ranks are counted from the root in the order
// of hosts and racks. The tree connects the first ranks of the racks, then within each rack the
// first ranks of its hosts, then within each host its ranks. So all chunks of a host or a rack
// enter it in one message.
func binomialScatter(ctx context.Context, r *p2p.Round, root int, dst []byte, src chunks) error {
	t := treeFrom(r, root)
	size := len(dst)
	// A leaf receives its own chunk. An inner node needs memory for its subtree. If node numbers
	// are ranks, the root uses src as this memory.
	run := dst // the chunks of this rank's subtree, beginning with its own chunk
	switch {
	case t.me == 0 && t.inRankOrder(r):
		run = src.buf
	case t.size() > 1:
		run = r.Scratch(t.size() * size)
	}
	if t.me != 0 {
		if err := r.Recv(ctx, t.parent(), run); err != nil {
			return err
		}
	} else {
		for node := 0; node < t.n && !same(run, src.buf); node++ {
			copy(run[node*size:], src.of(t.walk.Rank(node)))
		}
	}
	for _, child := range slices.Backward(t.children()) {
		outgoing := run[(child.node-t.me)*size:][:child.size*size]
		if err := r.Send(ctx, child.rank, outgoing); err != nil {
			return err
		}
	}
	copyUnlessSame(dst, run[:size])
	return nil
}
