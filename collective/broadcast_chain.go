package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
)

// chainBroadcast copies buf from the root to every rank.
//
// Every rank sends the vector on to the next rank. It sends each segment while the following
// segment arrives. With three ranks and three segments, from root 0:
//
//	          step 0   step 1   step 2   step 3
//	chunk 0   0 → 1    1 → 2
//	chunk 1            0 → 1    1 → 2
//	chunk 2                     0 → 1    1 → 2
//
// Cost: (n-2+s)(α + m/s β), for s segments.
//
// Nothing is folded. If the root is another rank, ranks are counted from the root in the order
// of hosts and racks. So the vector enters every host and every rack once, except the root's
// own.
//
// Open MPI's broadcasts use the same chain, with a fanout of one:
// ompi/mca/coll/base/coll_base_bcast.c.
func chainBroadcast(ctx context.Context, r *p2p.Round, root int, buf []byte) error {
	n, nodes := r.Size(), r.Layout().From(root)
	me := nodes.Node(r.Rank())
	if n == 1 {
		return nil
	}
	next, prev := nodes.Rank(modulo(me+1, n)), nodes.Rank(modulo(me-1, n))
	switch me {
	case 0:
		return r.Send(ctx, next, buf)
	case n - 1:
		return r.Recv(ctx, prev, buf)
	}
	p := pipelineOf(r, buf)
	last := p.segments() - 1
	if err := r.Recv(ctx, prev, p.of(0)); err != nil {
		return err
	}
	for i := range last {
		if err := r.Exchange(ctx, next, p.of(i), prev, p.of(i+1)); err != nil {
			return err
		}
	}
	return r.Send(ctx, next, p.of(last))
}
