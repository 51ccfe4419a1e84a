package collective

import (
	"math/bits"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/topology"
)

// A tree is the binomial tree over a round's ranks, seen from one of them. Nodes
// are ranks counted from the root on, in the order of the round's layout. Where all
// are on one host, node v has the children v+1, v+2, v+4, …, as long as they lie
// below v plus the lowest bit of v, and the subtree v, v+1, …
//
//	0 ─┬─ 1
//	   ├─ 2 ─── 3
//	   └─ 4 ─┬─ 5
//	         └─ 6 ─── 7
//
// Where there are several hosts, such a tree joins the first nodes of the racks,
// one in each rack the first nodes of its hosts, and one in each host its nodes: so
// every host and every rack but the root's is entered by one edge. A subtree is a
// run of nodes all the same.
type tree struct {
	walk       topology.Walk
	n, root    int
	me         int // this rank's node
	parentNode int // the parent's node
	end        int // the node after this rank's subtree
	count      int
	childNodes [maxChildren]childNode
}

// A childNode is a child of this rank's node, with its subtree.
type childNode struct {
	rank int
	node int // the first node of the subtree
	size int // how many nodes it has
}

// maxChildren is more than a node of a job of at most 2^31 ranks can have: a bit
// for each doubling, and one for each of the three levels.
const maxChildren = 36

// treeFrom is the tree from a root in the order of the round's layout.
func treeFrom(r *p2p.Round, root int) tree { return treeOver(r, r.Layout(), root) }

// treeInRankOrder is the tree from rank 0 whose nodes are ranks, for operators that
// do not commute: it is treeFrom's where the layout keeps the order of the ranks.
func treeInRankOrder(r *p2p.Round) tree {
	if l := r.Layout(); l.InOrder() {
		return treeOver(r, l, 0)
	}
	flat := topology.Flat(r.Size())
	return treeOver(r, &flat, 0)
}

func treeOver(r *p2p.Round, l *topology.Layout, root int) tree {
	w := l.From(root)
	t := tree{walk: w, n: r.Size(), root: root, me: w.Node(r.Rank())}
	spot := w.Coordinates(r.Rank())

	// Within the host: spots are the nodes from start on.
	start := w.HostStart(spot.Rack, spot.Host)
	t.parentNode = start + spot.Local&(spot.Local-1)
	t.end = t.me + 1
	local := w.HostStart(spot.Rack, spot.Host+1) - start
	t.addChildren(spot.Local, local, func(i int) int { return start + i })
	if spot.Local > 0 {
		return t
	}
	// Among the hosts of the rack.
	if spot.Host > 0 {
		t.parentNode = w.HostStart(spot.Rack, spot.Host&(spot.Host-1))
	}
	t.addChildren(spot.Host, w.HostsOf(spot.Rack), func(i int) int { return w.HostStart(spot.Rack, i) })
	if spot.Host > 0 {
		return t
	}
	// Among the racks.
	t.parentNode = w.RackStart(spot.Rack & (spot.Rack - 1))
	t.addChildren(spot.Rack, w.Racks(), w.RackStart)
	return t
}

// addChildren adds the branches to the items i+1, i+2, i+4, … of a binomial tree over
// count items, where this node is at the head of item i. first is an item's first
// node, and the end of the last one's.
func (t *tree) addChildren(i, count int, firstNode func(i int) int) {
	width := i & -i
	if i == 0 {
		width = 1 << bits.Len(uint(count-1))
	}
	for distance := 1; distance < width && i+distance < count; distance *= 2 {
		node, end := firstNode(i+distance), firstNode(min(i+2*distance, count))
		t.childNodes[t.count] = childNode{rank: t.walk.Rank(node), node: node, size: end - node}
		t.count++
		t.end = end
	}
}

// children are this node's branches, the nearest first: their subtrees follow each
// other.
func (t *tree) children() []childNode { return t.childNodes[:t.count] }

// parent is the parent's rank.
func (t *tree) parent() int { return t.walk.Rank(t.parentNode) }

// size is how many nodes the subtree below this node has, itself included.
func (t *tree) size() int { return t.end - t.me }

// inRankOrder reports whether nodes are ranks.
func (t *tree) inRankOrder(r *p2p.Round) bool { return t.root == 0 && r.Layout().InOrder() }
