package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
)

// sharedBroadcast copies buf from the root to every rank.
//
// Fragment by fragment, the root copies the vector into its slot, and the other ranks copy it out
// of the slot. With two ranks, from root 0:
//
//	         step 0       step 1       step 2
//	rank 0   A → slot 0   B → slot 0
//	rank 1                A ← slot 0   B ← slot 0
//
// The root may be ahead of the slowest rank by as many fragments as the slots hold. With two ranks,
// fragments fit into the first-level cache. With more ranks, fragments are larger, because all
// ranks wait for each fragment. This wait is longest if there are more ranks than cores.
//
// Cost: α + mβ, in cache, because the root copies in while the other ranks copy out. Each fragment
// after the first takes another α.
func sharedBroadcast(ctx context.Context, r *p2p.Round, root int, buf []byte) error {
	step := broadcastFragment(r.Size())
	count := fragmentCount(len(buf), step)
	p := r.Fragments(count, min(len(buf), step))
	copyOut := resultCopy((r.Size() - 1) * len(buf))
	for i := range count {
		part := blockOf(buf, i, step)
		if r.Rank() == root {
			// This waits for the slowest reader only when all slots are in use.
			if err := p.AwaitFree(ctx); err != nil {
				return err
			}
			copy(p.Slot(root), part)
			p.SetDone()
		} else {
			if err := p.AwaitDone(ctx, root); err != nil {
				return err
			}
			copyOut(part, p.Slot(root))
			p.SetDone()
		}
		p = p.Next()
	}
	return nil
}

// broadcastFragment returns the size in bytes of the fragments of a broadcast to n ranks.
func broadcastFragment(n int) int {
	if n == 2 {
		return p2p.SlotSize / 4
	}
	return p2p.SlotSize
}
