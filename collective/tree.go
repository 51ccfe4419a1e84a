package collective

import (
	"math/bits"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/topology"
)

// A tree is the binomial tree over a round's ranks, as one rank sees it. Nodes are ranks counted
// from the root in the order of the round's layout. On one host, node v has the children v+1, v+2,
// v+4, and so on, below v plus the lowest bit of v. Its subtree is a run of nodes that begins with
// v.
//
//	0 ─┬─ 1
//	   ├─ 2 ─── 3
//	   └─ 4 ─┬─ 5
//	         └─ 6 ─── 7
//
// On several hosts there are three levels of such trees: one over the first nodes of the racks,
// one in each rack over the first nodes of its hosts, and one in each host over its nodes. One
// edge then enters every host and every rack, except the root's own. A subtree is still a run of
// consecutive nodes.
type tree struct {
	walk       topology.Walk
	n, root    int
	me         int // this rank's node
	parentNode int // the parent's node
	end        int // the node after this rank's subtree
	count      int
	childNodes [maxChildren]childNode
}

// A childNode describes the subtree of a child of this rank's node.
type childNode struct {
	rank int
	node int // the child, which is the first node of the subtree
	size int // number of nodes in the subtree
}

// maxChildren is larger than the number of children that a node can have in a job of 2^31 ranks.
const maxChildren = 36

// treeFrom returns the tree from root in the order of the round's layout.
func treeFrom(r *p2p.Round, root int) tree { return treeOver(r, r.Layout(), root) }

// treeInRankOrder returns the tree from rank 0 in which node numbers are ranks. Operators that do
// not commute need it. It equals the result of treeFrom if the layout keeps the order of the ranks.
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

	// The tree within the host, whose nodes begin at start. At each of the three levels, the
	// parent's index is this node's index without its lowest bit.
	start := w.HostStart(spot.Rack, spot.Host)
	t.parentNode = start + spot.Local&(spot.Local-1)
	t.end = t.me + 1
	local := w.HostStart(spot.Rack, spot.Host+1) - start
	t.addChildren(spot.Local, local, func(i int) int { return start + i })
	if spot.Local > 0 {
		return t
	}
	// The tree over the hosts of the rack.
	if spot.Host > 0 {
		t.parentNode = w.HostStart(spot.Rack, spot.Host&(spot.Host-1))
	}
	t.addChildren(spot.Host, w.HostsOf(spot.Rack), func(i int) int { return w.HostStart(spot.Rack, i) })
	if spot.Host > 0 {
		return t
	}
	// The tree over the racks.
	t.parentNode = w.RackStart(spot.Rack & (spot.Rack - 1))
	t.addChildren(spot.Rack, w.Racks(), w.RackStart)
	return t
}

// addChildren adds this node's children at one of the three levels. A level is a binomial tree over
// count items. An item is a rank of the host, a host of the rack, or a rack, and consists of
// consecutive nodes. This node is the first node of item i. Its children at this level are the
// first nodes of items i+1, i+2, i+4, …. The function firstNode returns the first node of an item;
// firstNode(count) is the node after the last item.
func (t *tree) addChildren(i, count int, firstNode func(i int) int) {
	// The subtree of item i has i&-i items. The subtree of item 0 has all items.
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

// children returns this node's children, the nearest child first. The subtrees of the children are
// consecutive.
func (t *tree) children() []childNode { return t.childNodes[:t.count] }

// parent returns the rank of the parent.
func (t *tree) parent() int { return t.walk.Rank(t.parentNode) }

// size returns the number of nodes in this node's subtree, this node included.
func (t *tree) size() int { return t.end - t.me }

// inRankOrder reports whether the number of each node is the rank of the node. Only then is a fold
// in the order of the nodes also a fold in rank order.
func (t *tree) inRankOrder(r *p2p.Round) bool { return t.root == 0 && r.Layout().InOrder() }
