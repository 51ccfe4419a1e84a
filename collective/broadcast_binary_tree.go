package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
)

// binaryTreeBroadcast copies buf from the root to every rank.
//
// Rank v sends the vector on to ranks 2v+1 and 2v+2. It sends each segment while the following
// segment arrives. With four ranks and two segments, from root 0:
//
//	         step 0   step 1   step 2   step 3
//	rank 0   01 → 1   01 → 2   23 → 1   23 → 2
//	rank 1            01 → 3            23 → 3
//
// Cost: (2(s-1) + d)(α + m/s β), for s segments, where d is at most 2⌊log₂n⌋; two ranks are a
// chain.
//
// Nothing is folded. If the root is another rank, ranks are counted from the root in the order
// of hosts and racks.
//
// Open MPI's broadcasts use the same binary tree: ompi/mca/coll/base/coll_base_bcast.c.
func binaryTreeBroadcast(ctx context.Context, r *p2p.Round, root int, buf []byte) error {
	n, nodes := r.Size(), r.Layout().From(root)
	if n == 1 {
		return nil
	}
	me := nodes.Node(r.Rank())
	parent, left, right := nodes.Rank(max(me-1, 0)/2), 2*me+1, 2*me+2
	if left >= n {
		return r.Recv(ctx, parent, buf)
	}
	p := pipelineOf(r, buf)
	if me != 0 {
		if err := r.Recv(ctx, parent, p.of(0)); err != nil {
			return err
		}
	}
	// Segment i goes to the left child while segment i+1 arrives. Then segment i goes to the
	// right child. The root therefore sends every segment twice, so segments enter the tree at
	// half the speed of a chain.
	for i := range p.segments() {
		var err error
		if me != 0 && i+1 < p.segments() {
			err = r.Exchange(ctx, nodes.Rank(left), p.of(i), parent, p.of(i+1))
		} else {
			err = r.Send(ctx, nodes.Rank(left), p.of(i))
		}
		if err == nil && right < n {
			err = r.Send(ctx, nodes.Rank(right), p.of(i))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
