package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// binomialReduce reduces the vectors that the ranks hold in src, and leaves the result in dst on
// the root. dst may be the same memory as src, and is ignored on other ranks.
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
// Ranks are counted from the root in the order of hosts and racks. Neighbouring blocks of ranks are
// folded, the first block as the earlier operand. A binomial tree folds the ranks of each host,
// then the hosts of each rack, then the racks. One message leaves every host and every rack, except
// the root's own. The order depends on n, that placement and the root alone, so equal runs give
// equal bits. With root 0, the order is rank order, unless the hosts' ranks are interleaved. For
// operators that do not commute, the order is always rank order. Only reduceBroadcastAllReduce
// passes such operators. All other callers need an operator that commutes.
//
// The tree comes from van de Geijn, "On global combine operations", JPDC 22(2), 1994.
func binomialReduce(ctx context.Context, r *p2p.Round, root int, dst, src []byte, k reduce.Kernel) error {
	t := treeFrom(r, root)
	if !k.Op().Commutative() {
		t = treeInRankOrder(r) // only reduceBroadcastAllReduce passes such operators, with root 0
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
