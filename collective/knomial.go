package collective

import (
	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/topology"
)

// radix is that of the k-nomial trees: two steps of a binomial tree in one, with
// three children for every two. Parents send to several children without waiting
// for what lies between, so that few levels count for more than few messages.
const radix = 4

// A knomial is the 4-nomial tree over a round's ranks, seen from one of them. Nodes
// are ranks counted from the root on, in the order of the round's layout. Node v has the children v+d, v+2d and v+3d,
// for d = 1, 4, 16, … below its width, and the subtree v, v+1, …, v+width-1, as far
// as there are such nodes.
//
//	0 ─┬─ 1
//	   ├─ 2
//	   ├─ 3
//	   └─ 4 ─┬─ 5
//	         └─ 6
type knomial struct {
	nodes topology.Walk
	n     int
	me    int // this rank's node
	width int // the largest size that this node's subtree could have: a power of 4
}

func knomialFrom(r *p2p.Round, root int) knomial {
	t := knomial{nodes: r.Layout().From(root), n: r.Size(), width: 1}
	t.me = t.nodes.Node(r.Rank())
	for t.width < t.n && t.me%(radix*t.width) == 0 {
		t.width *= radix
	}
	return t
}

// parent is the parent's rank.
func (t knomial) parent() int { return t.nodes.Rank(t.me - t.me/t.width%radix*t.width) }
