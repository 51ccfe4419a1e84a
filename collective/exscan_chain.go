package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// chainExScan reduces the vectors that ranks 0 to r-1 hold in buf, and leaves the result in buf on
// each rank r. On rank 0 buf is not changed.
//
// It is like linearExScan, but with a pipeline: every rank sends a segment on while the following
// segment arrives. With three ranks and three segments:
//
//	          step 0   step 1   step 2   step 3
//	chunk 0   0 → 1    1 → 2
//	chunk 1            0 → 1    1 → 2
//	chunk 2                     0 → 1    1 → 2
//
// Cost: (n-2+s)(α + m/s β) + (n-3+s)m/s γ, for s segments, and m bytes of scratch memory.
//
// Shares are folded in the order 0, 1, …, r-1, one after the other. The result has the bits of a
// serial loop over the ranks. The operator need not commute.
func chainExScan(ctx context.Context, r *p2p.Round, buf []byte, k reduce.Kernel) error {
	n, me := r.Size(), r.Rank()
	switch {
	case n == 1:
		return nil
	case me == 0:
		return r.Send(ctx, 1, buf)
	case me == n-1:
		return r.Recv(ctx, me-1, buf)
	}
	// buf becomes the result, which is the fold of the earlier ranks' shares. own becomes the
	// vector to send on, which also includes this rank's share.
	own := r.Scratch(len(buf))
	copy(own, buf)
	before, partial := pipelineOf(r, buf), pipelineOf(r, own)
	last := before.segments() - 1
	if err := r.Recv(ctx, me-1, before.of(0)); err != nil {
		return err
	}
	for i := range last {
		k.Fold(partial.of(i), before.of(i), partial.of(i))
		if err := r.Exchange(ctx, me+1, partial.of(i), me-1, before.of(i+1)); err != nil {
			return err
		}
	}
	k.Fold(partial.of(last), before.of(last), partial.of(last))
	return r.Send(ctx, me+1, partial.of(last))
}
