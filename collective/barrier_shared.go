package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
)

// sharedBarrier returns when every rank has called it. Each rank sets its flag and waits for the
// flags of all other ranks. With two ranks:
//
//	         step 0         step 1
//	rank 0   shows flag 0   sees flag 1
//	rank 1   shows flag 1   sees flag 0
//
// Cost: α.
func sharedBarrier(ctx context.Context, r *p2p.Round) error {
	// AwaitFree waits for the readers of the previous operation, as every operation does.
	p := r.Fragments(1, 0)
	if err := p.AwaitFree(ctx); err != nil {
		return err
	}
	p.SetDone()
	return awaitDone(ctx, r, p)
}
