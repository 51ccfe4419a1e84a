package collective

import (
	"context"
	"math/bits"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// recursiveDoublingAllReduce reduces the vectors that the ranks hold in buf, and leaves the result
// in buf on every rank.
//
// In each step, partners exchange their folds. The partners are at distance 1, then 2, then 4, and
// so on. Each step doubles the number of shares in a rank's fold. Ranks beyond the largest power of
// two send their share to a neighbour first, and receive the result last. With five ranks:
//
//	         step 0   step 1   step 2    step 3
//	rank 0            01 → 2   012 → 3   01234 → 1
//	rank 1   1 → 0
//	rank 2            2 → 0    012 → 4
//	rank 3   3 → 4             34 → 0
//	rank 4   4 → 3             34 → 2
//
// Cost: ⌊log₂n⌋(α + mβ + mγ), and 2α + 2mβ + mγ more unless n is a power of two; m bytes of
// scratch memory.
//
// Neighbouring blocks of ranks are folded, the lower block as the earlier operand. Both partners
// fold the same operands in the same order, so equal runs give equal bits on all ranks. The order
// is rank order, so the operator need not commute.
//
// The exchanges follow Thakur, Rabenseifner and Gropp, "Optimization of collective communication
// operations in MPICH", IJHPCA 19(1), 2005, section 4.5.
func recursiveDoublingAllReduce(ctx context.Context, r *p2p.Round, buf []byte, k reduce.Kernel) error {
	return recursiveDoubling(ctx, r, buf, k, r.Size())
}

// recursiveDoubling does the work of recursiveDoublingAllReduce. The vectors may already be folds
// of several shares. The parameter ranks is the total number of shares, by which a mean is divided.
func recursiveDoubling(ctx context.Context, r *p2p.Round, buf []byte, k reduce.Kernel, ranks int) error {
	n, me := r.Size(), r.Rank()
	power := 1 << (bits.Len(uint(n)) - 1)
	extras := n - power // ranks 1, 3, …, 2*extras-1 are extra: the preceding rank acts for each

	isExtra := me < 2*extras && me%2 == 1
	if isExtra {
		return sendAndAwaitResult(ctx, r, me-1, buf)
	}
	isProxy := me < 2*extras
	if isProxy {
		if err := r.RecvFold(ctx, me+1, buf, k, p2p.Later); err != nil {
			return err
		}
	}
	var arrived []byte
	if power > 1 {
		arrived = r.Scratch(len(buf))
	}
	vertex := me - min(extras, me/2) // this rank's position among the ranks that are not extra
	for distance := 1; distance < power; distance *= 2 {
		other := vertex ^ distance
		partner := other + min(extras, other)
		if err := r.Exchange(ctx, partner, buf, partner, arrived); err != nil {
			return err
		}
		// Both partners fold the lower ranks' block first, so they get the same bits.
		if partner < me {
			k.Fold(buf, arrived, buf)
		} else {
			k.Fold(buf, buf, arrived)
		}
	}
	k.Finish(buf, ranks)
	if isProxy {
		return r.Send(ctx, me+1, buf)
	}
	return nil
}

// sendAndAwaitResult sends this rank's share to another rank, and receives the result from that
// rank.
func sendAndAwaitResult(ctx context.Context, r *p2p.Round, to int, buf []byte) error {
	if err := r.Send(ctx, to, buf); err != nil {
		return err
	}
	return r.Recv(ctx, to, buf)
}
