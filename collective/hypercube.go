package collective

import (
	"context"
	"math/bits"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// A foldedHypercube maps a round's ranks to the vertices of a hypercube, for recursive doubling
// and halving. The number of vertices is a power of two. Vertices are in rank order, and
// exchange with partners at distance 1, 2, 4, …. If there are more ranks than vertices, the
// first ranks form pairs of a proxy and an extra rank, and each pair shares one vertex. The
// extra rank sends its share to its proxy before the first step. With six ranks, where 1 and 3
// are extra:
//
//	vertex 0   rank 0, and rank 1's share
//	vertex 1   rank 2, and rank 3's share
//	vertex 2   rank 4
//	vertex 3   rank 5
//
// Every rank has one of these roles:
//
//	rank             isExtra   isProxy   what it does
//	extra            true      false     sends its share first, gets the result last
//	proxy            false     true      exchanges for itself and its extra rank
//	every other      false     false     exchanges for itself
type foldedHypercube struct {
	me, root int // ranks; the root is never extra
	power    int // number of vertices
	extras   int // the first extras vertices stand for two ranks each
}

func hypercubeOf(r *p2p.Round, root int) foldedHypercube {
	power := 1 << (bits.Len(uint(r.Size())) - 1)
	return foldedHypercube{me: r.Rank(), root: root, power: power, extras: r.Size() - power}
}

// vertex returns this rank's vertex. An extra rank has the same vertex as its proxy.
func (d foldedHypercube) vertex() int {
	if d.me < 2*d.extras {
		return d.me / 2
	}
	return d.me - d.extras
}

// first returns the first rank that a vertex stands for. If vertex is the number of vertices, first
// returns the number of ranks. So first(lo) and first(hi) bound the ranks of vertices lo to hi-1.
func (d foldedHypercube) first(vertex int) int { return vertex + min(d.extras, vertex) }

// rank returns the rank that acts for a vertex.
func (d foldedHypercube) rank(vertex int) int {
	first := d.first(vertex)
	if vertex < d.extras && d.root == first+1 {
		return d.root
	}
	return first
}

// neighbour returns the proxy of an extra rank, and the extra rank of a proxy.
func (d foldedHypercube) neighbour() int { return d.me ^ 1 }

// isExtra reports whether another rank acts for this rank.
func (d foldedHypercube) isExtra() bool { return d.rank(d.vertex()) != d.me }

// isProxy reports whether this rank also acts for an extra rank.
func (d foldedHypercube) isProxy() bool { return d.me < 2*d.extras && !d.isExtra() }

// partner returns the rank that acts for the vertex at the given distance.
func (d foldedHypercube) partner(distance int) int { return d.rank(d.vertex() ^ distance) }

// side returns whether another rank's share is the earlier or the later operand in a fold with
// this rank's share.
func (d foldedHypercube) side(rank int) p2p.Side {
	if rank < d.me {
		return p2p.Earlier
	}
	return p2p.Later
}

// foldExtra, on a proxy, receives the share of its extra rank and folds it into buf. It does
// nothing on other ranks.
func (d foldedHypercube) foldExtra(ctx context.Context, r *p2p.Round, buf []byte, k reduce.Kernel) error {
	if !d.isProxy() {
		return nil
	}
	return r.RecvFold(ctx, d.neighbour(), buf, k, d.side(d.neighbour()))
}

// reduceScatter runs recursive halving over buf, which has one chunk per vertex. It returns the
// number of the chunk whose fold is complete on this vertex. This is the vertex number with its
// bits reversed, because the nearest partners come first. With this order of partners, folds are in
// rank order. Afterwards the other chunks of buf hold partial folds.
func (d foldedHypercube) reduceScatter(ctx context.Context, r *p2p.Round, buf chunks, k reduce.Kernel) (own int, err error) {
	// Each step halves the run of chunks that starts at own. The vertex number has one bit for each
	// distance. The bit for this distance selects the half that the vertex keeps, so partners keep
	// different halves.
	for distance, half := 1, d.power/2; distance < d.power; distance, half = distance*2, half/2 {
		keeping, outgoing := buf.span(own, own+half), buf.span(own+half, own+2*half)
		if d.vertex()&distance != 0 {
			keeping, outgoing = outgoing, keeping
			own += half
		}
		partner := d.partner(distance)
		if err := r.ExchangeFold(ctx, partner, outgoing, partner, keeping, k, d.side(partner)); err != nil {
			return own, err
		}
	}
	return own, nil
}

// allGather gives every vertex all chunks of buf. The parameter own is the chunk number that
// reduceScatter returned.
func (d foldedHypercube) allGather(ctx context.Context, r *p2p.Round, buf chunks, own int) error {
	for distance, held := d.power/2, 1; distance > 0; distance, held = distance/2, held*2 {
		partner, other := d.partner(distance), own^held
		if err := r.Exchange(ctx, partner, buf.span(own, own+held), partner, buf.span(other, other+held)); err != nil {
			return err
		}
		own = min(own, other)
	}
	return nil
}

// gather is like allGather, but only the root gets all chunks. In each step, a vertex that differs
// from the root's vertex in the bit of that step sends its chunks to its partner, and is then
// finished.
func (d foldedHypercube) gather(ctx context.Context, r *p2p.Round, buf chunks, own int) error {
	// away has the bits in which this vertex differs from the root's vertex.
	away := d.vertex() ^ foldedHypercube{me: d.root, root: d.root, extras: d.extras}.vertex()
	for distance, held := d.power/2, 1; distance > 0; distance, held = distance/2, held*2 {
		partner, other := d.partner(distance), own^held
		if away&distance != 0 {
			return r.Send(ctx, partner, buf.span(own, own+held))
		}
		if err := r.Recv(ctx, partner, buf.span(other, other+held)); err != nil {
			return err
		}
		own = min(own, other)
	}
	return nil
}
