package collective

import (
	"context"
	"math/bits"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// A foldedHypercube is a round's ranks as recursive doubling and halving see them, from
// one of them. A power of two of them have places, in rank order, and exchange
// with partners at distance 1, 2, 4, …. The others have none: of the first ranks,
// two by two, one lends its share to its neighbour, which borrows it, and has the
// place of both. With six ranks, where 1 and 3 lend:
//
//	place 0   rank 0, and rank 1's share
//	place 1   rank 2, and rank 3's share
//	place 2   rank 4
//	place 3   rank 5
type foldedHypercube struct {
	me, root int // ranks; the root always has a place
	power    int // how many places there are
	extras   int // how many of them, the first ones, stand for two ranks
}

func hypercubeOf(r *p2p.Round, root int) foldedHypercube {
	power := 1 << (bits.Len(uint(r.Size())) - 1)
	return foldedHypercube{me: r.Rank(), root: root, power: power, extras: r.Size() - power}
}

// vertex is this rank's place, or its neighbour's that it lends to.
func (d foldedHypercube) vertex() int {
	if d.me < 2*d.extras {
		return d.me / 2
	}
	return d.me - d.extras
}

// first is the first of the ranks that a place stands for; of place power, it is
// the number of ranks. So a run of places stands for a run of ranks.
func (d foldedHypercube) first(vertex int) int { return vertex + min(d.extras, vertex) }

// rank is the rank that has a place.
func (d foldedHypercube) rank(vertex int) int {
	first := d.first(vertex)
	if vertex < d.extras && d.root == first+1 {
		return d.root
	}
	return first
}

// neighbour is the rank that borrows from this one, or lends to it.
func (d foldedHypercube) neighbour() int { return d.me ^ 1 }

// isExtra reports whether this rank has no place.
func (d foldedHypercube) isExtra() bool { return d.rank(d.vertex()) != d.me }

// isProxy reports whether this rank has its neighbour's share, too.
func (d foldedHypercube) isProxy() bool { return d.me < 2*d.extras && !d.isExtra() }

// partner is the rank at a distance, in places.
func (d foldedHypercube) partner(distance int) int { return d.rank(d.vertex() ^ distance) }

// side is where another rank's share stands in a fold with this one's.
func (d foldedHypercube) side(rank int) p2p.Side {
	if rank < d.me {
		return p2p.Earlier
	}
	return p2p.Later
}

// foldExtra folds the neighbour's share into buf, if there is one.
func (d foldedHypercube) foldExtra(ctx context.Context, r *p2p.Round, buf []byte, k reduce.Kernel) error {
	if !d.isProxy() {
		return nil
	}
	return r.RecvFold(ctx, d.neighbour(), buf, k, d.side(d.neighbour()))
}

// reduceScatter leaves in one chunk of buf, which has a chunk for each place, the fold of
// all places' chunk, and returns its number: the place's with its bits in reverse,
// because the nearest partners come first, so that folds are in rank order. The
// rest of buf is left half reduced.
func (d foldedHypercube) reduceScatter(ctx context.Context, r *p2p.Round, buf chunks, k reduce.Kernel) (own int, err error) {
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

// allGather leaves on every place all chunks of buf, beside its own, which is where
// halve left it.
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

// gather is unhalve for the root alone: of two partners, the one whose place
// differs from the root's gives what it has, and is done.
func (d foldedHypercube) gather(ctx context.Context, r *p2p.Round, buf chunks, own int) error {
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
