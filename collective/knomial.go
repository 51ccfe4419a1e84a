package collective

import (
	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/topology"
)

// radix is the radix of the k-nomial trees. One level of a 4-nomial tree replaces two levels of a
// binomial tree. A parent sends three messages in place of two, but does not wait between them. So
// the tree saves more time by the missing level than it loses by the additional message.
const radix = 4

// A knomial is the 4-nomial tree over a round's ranks, as one rank sees it. Nodes are ranks
// counted from the root in the order of the round's layout. Node v has the children v+d, v+2d
// and v+3d for d = 1, 4, 16, … below its width. Its subtree consists of the existing nodes among
// v, v+1, …, v+width-1.
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
	width int // the largest possible size of this node's subtree: a power of 4
}

func knomialFrom(r *p2p.Round, root int) knomial {
	t := knomial{nodes: r.Layout().From(root), n: r.Size(), width: 1}
	t.me = t.nodes.Node(r.Rank())
	// The subtree has one level for each zero digit at the end of the node's number in base 4.
	for t.width < t.n && t.me%(radix*t.width) == 0 {
		t.width *= radix
	}
	return t
}

// parent returns the rank of the parent.
func (t knomial) parent() int { return t.nodes.Rank(t.me - t.me/t.width%radix*t.width) }
