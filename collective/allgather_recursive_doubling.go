package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
)

// recursiveDoublingAllGather gives every rank the chunks of all other ranks. On entry, each rank's
// own chunk is in buf.
//
// Partners at distance 1, 2, 4, … exchange all chunks that they have. Each step doubles the
// number of chunks that a rank has. Ranks beyond the largest power of two send their chunk to a
// neighbour first, and receive all chunks last. With five ranks:
//
//	         step 0   step 1   step 2    step 3
//	rank 0            01 → 2   012 → 3   01234 → 1
//	rank 1   1 → 0
//	rank 2            2 → 0    012 → 4
//	rank 3   3 → 4             34 → 0
//	rank 4   4 → 3             34 → 2
//
// Cost: ⌈log₂n⌉α + m(n-1)/n β for a power of two. Else ⌊log₂n⌋α + 2α, and in all at most 3mβ.
//
// Nothing is folded. Chunks may differ in length. The algorithm needs no scratch memory, because
// the chunks that a rank has are always consecutive.
//
// Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
// MPICH", IJHPCA 19(1), 2005, section 4.1.
func recursiveDoublingAllGather(ctx context.Context, r *p2p.Round, buf chunks) error {
	d := hypercubeOf(r, 0)
	if d.isExtra() {
		if err := r.Send(ctx, d.neighbour(), buf.of(d.me)); err != nil {
			return err
		}
		return r.Recv(ctx, d.neighbour(), buf.buf)
	}
	if d.isProxy() {
		if err := r.Recv(ctx, d.neighbour(), buf.of(d.neighbour())); err != nil {
			return err
		}
	}
	for held := 1; held < d.power; held *= 2 {
		own := d.vertex() &^ (held - 1) // the first vertex of this rank's run
		other := own ^ held
		outgoing := buf.span(d.first(own), d.first(own+held))
		incoming := buf.span(d.first(other), d.first(other+held))
		partner := d.partner(held)
		if err := r.Exchange(ctx, partner, outgoing, partner, incoming); err != nil {
			return err
		}
	}
	if d.isProxy() {
		return r.Send(ctx, d.neighbour(), buf.buf)
	}
	return nil
}
