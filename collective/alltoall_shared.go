package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
)

// sharedAllToAll copies chunk i of src to rank i, and receives chunk i of dst from rank i. All
// chunks are equally long.
//
// Fragment by fragment, every rank copies one subrange of each chunk into its slot, side by side.
// Then it copies the subrange for itself out of each of the other slots. With two ranks:
//
//	         step 0        step 1
//	rank 0   B0 → slot 0   A1 ← slot 1
//	rank 1   A1 → slot 1   B0 ← slot 0
//
// Cost: α + 2m(n-1)/n β, in cache, for a vector of one fragment. Each further fragment takes
// another α.
func sharedAllToAll(ctx context.Context, r *p2p.Round, dst, src chunks) error {
	n, me := r.Size(), r.Rank()
	// A slot holds one subrange for each rank. A subrange is never 0 bytes long, because ranks
	// cannot hand over an empty fragment.
	subrange := max(1, min(p2p.SlotSize/n, len(src.of(me))))
	count := fragmentCount(len(src.of(me)), subrange)
	p := r.Fragments(count, n*subrange)
	copyOut := resultCopy(n * len(dst.buf))
	write := func(p p2p.Fragment, i int) {
		for rank := range n {
			if rank != me {
				copy(p.Slot(me)[rank*subrange:], blockOf(src.of(rank), i, subrange))
			}
		}
	}
	read := func(p p2p.Fragment, i, rank int) {
		if rank != me {
			copyOut(blockOf(dst.of(rank), i, subrange), p.Slot(rank)[me*subrange:])
		} else if i == count-1 { // copied last, because no rank waits for this rank any more
			copyCached(dst.of(me), src.of(me))
		}
	}
	return exchangeFragments(ctx, r, p, count, write, read)
}
