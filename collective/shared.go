package collective

import (
	"context"
	"math"

	"github.com/tutti-go/tutti/internal/cpu"
	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// The algorithms of this family work in memory that all ranks share, fragment by fragment.
// p2p.Fragment documents which rank may access which memory, and when. The algorithms exchange no
// messages. They copy a share into a slot at most once, and a result out of a slot at most once.
// Fragments are small enough to stay in cache between the rank that writes them and the ranks that
// read them.
//
// The algorithms fold in rank order. So the bits of a result do not depend on how the vector is
// cut, and operators need not commute.

// fragmentSize returns how many bytes of a rank's share fit into a fragment, in whole elements.
func fragmentSize(elem int) int { return p2p.SlotSize / elem * elem }

// fragmentCount returns the number of fragments of at most size bytes that m bytes need. It is
// at least 1: even an empty operation exchanges flags, so that ranks detect a mismatch or the
// failure of another rank.
func fragmentCount(m, size int) int { return max(1, (m+size-1)/size) }

// The constant shared is the name of the algorithms of this family. They run only if all ranks
// share memory.
const shared = "shared"

// NeedsShared reports whether an algorithm works in memory that the ranks share.
func (a Algorithm) NeedsShared() bool { return a.Name() == shared }

// blockOf returns bytes i*size up to (i+1)*size of b, or up to the end of b.
func blockOf(b []byte, i, size int) []byte {
	lo := min(i*size, len(b))
	return b[lo:min(lo+size, len(b))]
}

// A copyFunc copies bytes as the built-in copy does.
type copyFunc func(dst, src []byte) int

// resultCopy returns the function that copies results out of the slots. The parameter bytes is the
// number of bytes that all ranks together write. If these bytes do not fit into the caches, the
// function uses stores that bypass the caches.
func resultCopy(bytes int) copyFunc {
	if bytes >= cpu.MinNonTemporal {
		return cpu.CopyNonTemporal
	}
	return func(dst, src []byte) int { return copy(dst, src) }
}

// exchangeFragments hands over count fragments, beginning with p, among all ranks. For each
// fragment, it calls the function write to fill this rank's slot, and the function read for every
// rank's slot. It reads its own slot first, because it has just written it. Then it reads the other
// slots, beginning with the next rank.
//
// It delays its reads of the other ranks' slots: it reads fragment i after it has written
// fragment i+lead. With three fragments and a lead of 1:
//
//	writes         0   1   2
//	reads others       0   1   2
//
// The delay gives the other ranks time to write their slots. It also gives the caches time to
// write lines back to a level from which another core fetches them at less cost. docs/adr/0018
// has the measurement.
func exchangeFragments(ctx context.Context, r *p2p.Round, p p2p.Fragment, count int, write func(p p2p.Fragment, i int), read func(p p2p.Fragment, i, rank int)) error {
	n, me, lead := r.Size(), r.Rank(), min(r.MaxLead(), count-1)
	for i, in, out := 0, p, p; i < count+lead; i++ {
		if i < count {
			if err := in.AwaitFree(ctx); err != nil {
				return err
			}
			write(in, i)
			in.SetDone()
			read(in, i, me)
			in = in.Next()
		}
		if i < lead {
			continue
		}
		for d := 1; d < n; d++ {
			rank := modulo(me+d, n)
			if err := out.AwaitDone(ctx, rank); err != nil {
				return err
			}
			read(out, i-lead, rank)
		}
		out = out.Next()
	}
	return nil
}

// foldSlots folds all ranks' shares of bytes lo to hi of a fragment, in rank order, into dst. The
// parameter own is this rank's share, which may lie outside its slot. dst may be the same memory as
// own.
//
// The first fold writes the fold of ranks 0 and 1 into dst. If dst holds the share of a higher
// rank, which is folded later, foldSlots first saves this share in the rank's slot. No other rank
// reads that part of the slot meanwhile.
func foldSlots(r *p2p.Round, p p2p.Fragment, dst, own []byte, lo, hi int, k reduce.Kernel) {
	n, me := r.Size(), r.Rank()
	share := func(rank int) []byte {
		if rank == me {
			return own
		}
		return p.Slot(rank)[lo:hi]
	}
	if n == 1 {
		copyUnlessSame(dst, own)
		return
	}
	if me > 1 && same(dst, own) { // the first fold would overwrite this rank's share
		saved := p.Slot(me)[lo:hi]
		copy(saved, own)
		own = saved
	}
	k.Fold(dst, share(0), share(1))
	for rank := 2; rank < n; rank++ {
		k.Fold(dst, dst, share(rank))
	}
}

// awaitReady returns when the shares of all ranks in p can be read.
func awaitReady(ctx context.Context, r *p2p.Round, p p2p.Fragment) error {
	for rank := range r.Size() {
		if err := p.AwaitReady(ctx, rank); err != nil {
			return err
		}
	}
	return nil
}

// awaitDone returns when all ranks have called SetDone on p.
func awaitDone(ctx context.Context, r *p2p.Round, p p2p.Fragment) error {
	for rank := range r.Size() {
		if err := p.AwaitDone(ctx, rank); err != nil {
			return err
		}
	}
	return nil
}

// fragmentsOf returns the number of fragments that m bytes need. In a cost, α counts the waits of a
// rank for the other ranks: once or twice per fragment. A fragment counts as full, whatever the
// element size.
func fragmentsOf(m float64) float64 { return math.Ceil(m / p2p.SlotSize) }

// sharedAllReduceCost counts one hand-over for a small vector, which every rank folds as a whole.
// It counts two hand-overs per fragment of a longer vector.
func sharedAllReduceCost(n, m, s float64) (alpha, beta, gamma float64) {
	if m <= directBytes {
		return fragmentsOf(m), m, m * (n - 1)
	}
	return sharedReduceCost(n, m, s)
}

// sharedReduceCost counts two hand-overs per fragment, one of the shares and one of the results. A
// rank copies its share into its slot, except for its own part. It folds its own part, and copies
// all results out.
func sharedReduceCost(n, m, _ float64) (alpha, beta, gamma float64) {
	return 2 * fragmentsOf(m), m * (2 - 1/n), m * (n - 1) / n
}

// sharedBroadcastCost counts one hand-over per fragment. The copies in and out overlap.
func sharedBroadcastCost(n, m, _ float64) (alpha, beta, gamma float64) {
	return math.Ceil(m / float64(broadcastFragment(int(n)))), m, 0
}

// sharedAllGatherCost counts one hand-over per fragment. A fragment carries a part of one chunk in
// each slot.
func sharedAllGatherCost(n, m, _ float64) (alpha, beta, gamma float64) {
	return fragmentsOf(m / n), m, 0
}

// sharedAllToAllCost counts the copies of the chunks for the other ranks, into the slots and out of
// them.
func sharedAllToAllCost(n, m, _ float64) (alpha, beta, gamma float64) {
	return fragmentsOf(m), 2 * m * (n - 1) / n, 0
}

// sharedReduceScatterCost counts one hand-over per fragment. A rank copies the chunks of the other
// ranks into its slot, and folds its own chunk.
func sharedReduceScatterCost(n, m, _ float64) (alpha, beta, gamma float64) {
	return fragmentsOf(m), m * (n - 1) / n, m * (n - 1) / n
}

// sharedScanCost counts the folds of the last rank, which folds all shares.
func sharedScanCost(n, m, _ float64) (alpha, beta, gamma float64) {
	return fragmentsOf(m), m, m * (n - 1)
}

// sharedExScanCost counts the folds of the last rank, which leaves its own share out.
func sharedExScanCost(n, m, _ float64) (alpha, beta, gamma float64) {
	return fragmentsOf(m), m, m * max(n-2, 0)
}
