package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
)

// sharedAllGather gives every rank the chunks of all ranks. own is this rank's chunk.
//
// Fragment by fragment, every rank copies its chunk into its slot and to its destination, and
// copies the others' chunks out of their slots. With two ranks:
//
//	         step 0       step 1
//	rank 0   A → slot 0   A ← slot 0, B ← slot 1
//	rank 1   B → slot 1   A ← slot 0, B ← slot 1
//
// The drawing does not distinguish a slot from the chunk that was copied into it. A rank copies its
// own chunk from the source, not from the slot. If source and destination are the same memory, it
// does not copy the chunk at all.
//
// Cost: α + mβ, in cache, for a vector of one fragment. Each further fragment takes another α.
func sharedAllGather(ctx context.Context, r *p2p.Round, buf chunks, own []byte) error {
	n, me := r.Size(), r.Rank()
	longest := buf.longest()
	count := fragmentCount(longest, p2p.SlotSize)
	p := r.Fragments(count, longest)
	copyOut := resultCopy(n * len(buf.buf))
	inPlace := same(buf.of(me), own)
	write := func(p p2p.Fragment, i int) { copy(p.Slot(me), blockOf(own, i, p2p.SlotSize)) }
	read := func(p p2p.Fragment, i, rank int) {
		switch {
		case rank != me:
			copyOut(blockOf(buf.of(rank), i, p2p.SlotSize), p.Slot(rank))
		case !inPlace: // the chunk that was just read is still in the cache
			copyOut(blockOf(buf.of(me), i, p2p.SlotSize), blockOf(own, i, p2p.SlotSize))
		}
	}
	return exchangeFragments(ctx, r, p, count, write, read)
}
