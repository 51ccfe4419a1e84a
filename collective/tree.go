package collective

import (
	"math/bits"

	"github.com/tutti-go/tutti/p2p"
)

// A tree is the binomial tree over a round's ranks, seen from one of them. Nodes
// are ranks counted from the root on. Node v has the children v+1, v+2, v+4, …
// below v+width, and the subtree v, v+1, …, v+size-1.
//
//	0 ─┬─ 1
//	   ├─ 2 ─── 3
//	   └─ 4 ─┬─ 5
//	         └─ 6 ─── 7
type tree struct {
	n, root int
	me      int // this rank's node
	width   int // the largest size that this node's subtree could have: a power of two
}

func treeFrom(r *p2p.Round, root int) tree {
	t := tree{n: r.Size(), root: root}
	t.me = mod(r.Rank()-root, t.n)
	t.width = t.me & -t.me
	if t.me == 0 {
		t.width = 1 << bits.Len(uint(t.n-1))
	}
	return t
}

// rank is a node's rank.
func (t tree) rank(node int) int { return mod(node+t.root, t.n) }

// parent is the parent's rank.
func (t tree) parent() int { return t.rank(t.me - t.width) }

// size is how many nodes the subtree below this node has, itself included.
func (t tree) size() int { return min(t.width, t.n-t.me) }

// below is the size of the child's subtree at that distance; 0 when there is none.
func (t tree) below(distance int) int { return min(distance, t.n-t.me-distance) }
