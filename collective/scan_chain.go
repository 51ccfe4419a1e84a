package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// chainScan reduces the vectors that ranks 0 to r hold in buf, and leaves the result in buf on each
// rank r.
//
// It is like linearScan, but with a pipeline: every rank sends a segment on while the following
// segment arrives. With three ranks and three segments:
//
//	          step 0   step 1   step 2   step 3
//	chunk 0   0 → 1    1 → 2
//	chunk 1            0 → 1    1 → 2
//	chunk 2                     0 → 1    1 → 2
//
// Cost: (n-2+s)(α + m/s (β+γ)), for s segments.
//
// Shares are folded in the order 0, 1, …, r, one after the other. The result has the bits of a
// serial loop over the ranks. The operator need not commute.
func chainScan(ctx context.Context, r *p2p.Round, buf []byte, k reduce.Kernel) error {
	n, me := r.Size(), r.Rank()
	switch {
	case n == 1:
		return nil
	case me == 0:
		return r.Send(ctx, 1, buf)
	case me == n-1:
		return r.RecvFold(ctx, me-1, buf, k, p2p.Earlier)
	}
	p := pipelineOf(r, buf)
	last := p.segments() - 1
	if err := r.RecvFold(ctx, me-1, p.of(0), k, p2p.Earlier); err != nil {
		return err
	}
	for i := range last {
		if err := r.ExchangeFold(ctx, me+1, p.of(i), me-1, p.of(i+1), k, p2p.Earlier); err != nil {
			return err
		}
	}
	return r.Send(ctx, me+1, p.of(last))
}
