package collective

import (
	"context"
	"math"

	"github.com/tutti-go/tutti/internal/cpu"
	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// The algorithms of this family work in memory that all ranks share, piece by
// piece, where p2p.Piece says who may touch what, and when. No messages are
// exchanged, and nobody's share is copied more than once on its way in and once
// on its way out. Pieces are so small that they stay in cache between the rank
// that writes them and those that read them.
//
// They fold in rank order, so bits do not depend on how a vector is cut, and
// operators need not commute.

// fragmentSize is how many bytes of a rank's share fit into a piece, in whole
// elements.
func fragmentSize(elem int) int { return p2p.SlotSize / elem * elem }

// fragmentCount is how many pieces of at most size bytes m bytes are. Of nothing there
// is one, too: ranks that disagree, or are gone, are noticed by it.
func fragmentCount(m, size int) int { return max(1, (m+size-1)/size) }

// shared is the name of this family's algorithms. They can run only where the
// ranks have memory in common.
const shared = "shared"

// NeedsShared reports whether an algorithm works in memory that the ranks share.
func (a Algorithm) NeedsShared() bool { return a.Name() == shared }

// blockOf is bytes i*size to (i+1)*size of b, as far as it has them.
func blockOf(b []byte, i, size int) []byte {
	lo := min(i*size, len(b))
	return b[lo:min(lo+size, len(b))]
}

// A copyFunc copies bytes, as the built-in copy does.
type copyFunc func(dst, src []byte) int

// resultCopy is how results leave the slots, of which all ranks together write so
// many bytes: past the caches when these are too small for them anyway.
func resultCopy(bytes int) copyFunc {
	if bytes >= cpu.MinNonTemporal {
		return cpu.CopyNonTemporal
	}
	return func(dst, src []byte) int { return copy(dst, src) }
}

// exchangeFragments has every rank put its share of count pieces from p on into its slots, and
// take all shares: its own when the others can see it, and then the others', the next
// rank's first. It takes a piece of theirs some pieces
// after it has put its own in: so long the others have for theirs, and so long the caches
// have to put it out to where the others fetch it at less cost.
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

// foldSlots folds all ranks' shares of a part of a piece, in rank order, into
// dst. own is this rank's share, which need not lie in its slot; dst may be it.
// Nobody else reads that part of this rank's slot meanwhile.
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
	if me > 1 && same(dst, own) { // it would be overwritten before its turn
		saved := p.Slot(me)[lo:hi]
		copy(saved, own)
		own = saved
	}
	k.Fold(dst, share(0), share(1))
	for rank := 2; rank < n; rank++ {
		k.Fold(dst, dst, share(rank))
	}
}

// awaitReady returns when all ranks' shares of p can be read.
func awaitReady(ctx context.Context, r *p2p.Round, p p2p.Fragment) error {
	for rank := range r.Size() {
		if err := p.AwaitReady(ctx, rank); err != nil {
			return err
		}
	}
	return nil
}

// awaitDone returns when all ranks are done with p.
func awaitDone(ctx context.Context, r *p2p.Round, p p2p.Fragment) error {
	for rank := range r.Size() {
		if err := p.AwaitDone(ctx, rank); err != nil {
			return err
		}
	}
	return nil
}

// Their costs count, for α, how often a rank waits for the others: once or twice
// for each piece. A piece is taken to be full, whatever an element's size is.

// fragmentsOf is how many pieces the slots make of m bytes in each.
func fragmentsOf(m float64) float64 { return math.Ceil(m / p2p.SlotSize) }

func sharedAllReduceCost(n, m, s float64) (alpha, beta, gamma float64) {
	if m <= directBytes {
		return fragmentsOf(m), m, m * (n - 1)
	}
	return sharedReduceCost(n, m, s)
}

func sharedReduceCost(n, m, _ float64) (alpha, beta, gamma float64) {
	return 2 * fragmentsOf(m), m * (2 - 1/n), m * (n - 1) / n
}

func sharedBroadcastCost(n, m, _ float64) (alpha, beta, gamma float64) {
	return math.Ceil(m / float64(broadcastFragment(int(n)))), m, 0
}

// sharedAllGatherCost is that of slots with a chunk in each.
func sharedAllGatherCost(n, m, _ float64) (alpha, beta, gamma float64) {
	return fragmentsOf(m / n), m, 0
}

func sharedAllToAllCost(n, m, _ float64) (alpha, beta, gamma float64) {
	return fragmentsOf(m), 2 * m * (n - 1) / n, 0
}

func sharedReduceScatterCost(n, m, _ float64) (alpha, beta, gamma float64) {
	return fragmentsOf(m), m * (n - 1) / n, m * (n - 1) / n
}

func sharedScanCost(n, m, _ float64) (alpha, beta, gamma float64) {
	return fragmentsOf(m), m, m * (n - 1)
}

func sharedExScanCost(n, m, _ float64) (alpha, beta, gamma float64) {
	return fragmentsOf(m), m, m * max(n-2, 0)
}
