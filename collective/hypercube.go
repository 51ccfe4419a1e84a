package collective

import (
	"context"
	"math/bits"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// A foldedHypercube is a round's ranks as recursive doubling and halving see them. A hypercube
// needs a power of two: its vertices, in rank order, exchange with partners at distance 1, 2,
// 4, …. The other ranks are folded in beforehand. Of the first ranks, two by two, the extra
// rank sends its share to its neighbour, the proxy, which stands for both at one vertex. With
// six ranks, where 1 and 3 are extra:
//
//	vertex 0   rank 0, and rank 1's share
//	vertex 1   rank 2, and rank 3's share
//	vertex 2   rank 4
//	vertex 3   rank 5
//
// These roles partition the ranks:
//
//	rank             isExtra   isProxy   what it does
//	extra            true      false     sends its share first, gets the result last
//	proxy            false     true      exchanges for itself and its extra rank
//	every other      false     false     exchanges for itself
type foldedHypercube struct {
	me, root int // ranks; the root is never extra
	power    int // number of vertices
	extras   int // number of vertices, the first ones, that stand for two ranks
}

func hypercubeOf(r *p2p.Round, root int) foldedHypercube {
	power := 1 << (bits.Len(uint(r.Size())) - 1)
	return foldedHypercube{me: r.Rank(), root: root, power: power, extras: r.Size() - power}
}

// vertex returns this rank's vertex; for an extra rank, its proxy's.
func (d foldedHypercube) vertex() int {
	if d.me < 2*d.extras {
		return d.me / 2
	}
	return d.me - d.extras
}

// first returns the first rank that a vertex stands for. first(power) is the number of ranks,
// so a run of vertices stands for a run of ranks.
func (d foldedHypercube) first(vertex int) int { return vertex + min(d.extras, vertex) }

// rank returns the rank that acts for a vertex.
func (d foldedHypercube) rank(vertex int) int {
	first := d.first(vertex)
	if vertex < d.extras && d.root == first+1 {
		return d.root
	}
	return first
}

// neighbour returns the other rank of an extra rank and its proxy.
func (d foldedHypercube) neighbour() int { return d.me ^ 1 }

// isExtra reports whether another rank acts for this one.
func (d foldedHypercube) isExtra() bool { return d.rank(d.vertex()) != d.me }

// isProxy reports whether this rank acts for its neighbour, too.
func (d foldedHypercube) isProxy() bool { return d.me < 2*d.extras && !d.isExtra() }

// partner returns the rank at a distance, counted in vertices.
func (d foldedHypercube) partner(distance int) int { return d.rank(d.vertex() ^ distance) }

// side returns the operand that another rank's share is in a fold with this rank's.
func (d foldedHypercube) side(rank int) p2p.Side {
	if rank < d.me {
		return p2p.Earlier
	}
	return p2p.Later
}

// foldExtra receives the extra rank's share on its proxy and folds it into buf. It does nothing
// on other ranks.
func (d foldedHypercube) foldExtra(ctx context.Context, r *p2p.Round, buf []byte, k reduce.Kernel) error {
	if !d.isProxy() {
		return nil
	}
	return r.RecvFold(ctx, d.neighbour(), buf, k, d.side(d.neighbour()))
}

// reduceScatter runs recursive halving over buf, which has one chunk per vertex. It leaves in
// one chunk the fold of all vertices' chunk and returns its number, which is the vertex number
// with its bits reversed: the nearest partners come first, so that folds are in rank order. The
// rest of buf is left half reduced.
func (d foldedHypercube) reduceScatter(ctx context.Context, r *p2p.Round, buf chunks, k reduce.Kernel) (own int, err error) {
	// Each step halves the run of chunks that starts at own. The bit of the vertex at this
	// distance says which half it keeps, so both partners agree without a message.
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

// allGather gives every vertex all chunks of buf. own is the chunk that reduceScatter returned.
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

// gather is allGather for the root alone. In each step, the partner whose vertex differs from
// the root's in that bit sends what it has and is done.
func (d foldedHypercube) gather(ctx context.Context, r *p2p.Round, buf chunks, own int) error {
	// The bits in which this vertex differs from the root's.
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
