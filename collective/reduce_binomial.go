package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// binomialReduce reduces the src of all ranks into dst on the root. dst may be src, and is
// ignored on other ranks.
//
// Vectors are folded up a binomial tree. In every step, half of the remaining ranks send their
// folds to a neighbour. With six ranks, to root 0:
//
//	         step 0   step 1   step 2
//	rank 1   1 → 0
//	rank 2            23 → 0
//	rank 3   3 → 2
//	rank 4                     45 → 0
//	rank 5   5 → 4
//
// Cost: ⌈log₂n⌉(α + mβ + mγ), and up to two steps more where there are several hosts; m bytes
// of scratch memory on some ranks.
//
// Neighbouring blocks of ranks are folded, counted from the root on, the first block as the
// earlier operand: in each host, then in each rack, then all of them, each a binomial tree in
// the order of hosts and racks. One message leaves every host and every rack, except the root's
// own. The order depends on n, that placement and the root alone, so equal runs give equal bits.
// With root 0, the order is rank order, unless the hosts' ranks are interleaved. For operators
// that do not commute, which only reduceBroadcastAllReduce passes, the order is always rank
// order. All other callers need an op that commutes.
//
// The tree is that of van de Geijn, "On global combine operations", JPDC 22(2), 1994.
func binomialReduce(ctx context.Context, r *p2p.Round, root int, dst, src []byte, k reduce.Kernel) error {
	t := treeFrom(r, root)
	if !k.Op().Commutative() {
		t = treeInRankOrder(r) // only reduceBroadcastAllReduce uses such operators, with root 0
	}
	// A leaf sends its share as it is, and needs no memory.
	gathered := src
	switch {
	case t.me == 0:
		gathered = dst
	case t.size() > 1:
		gathered = r.Scratch(len(src))
	}
	copyUnlessSame(gathered, src)

	for _, child := range t.children() {
		if err := r.RecvFold(ctx, child.rank, gathered, k, p2p.Later); err != nil {
			return err
		}
	}
	if t.me == 0 {
		return nil
	}
	return r.Send(ctx, t.parent(), gathered)
}
