package collective

import (
	"context"
	"math/bits"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// A pairing is a round's ranks as recursive doubling and halving see them, from
// one of them. A power of two of them have places, in rank order, and exchange
// with partners at distance 1, 2, 4, …. The others have none: of the first ranks,
// two by two, one lends its share to its neighbour, which borrows it, and has the
// place of both. With six ranks, where 1 and 3 lend:
//
//	place 0   rank 0, and rank 1's share
//	place 1   rank 2, and rank 3's share
//	place 2   rank 4
//	place 3   rank 5
type pairing struct {
	me, root int // ranks; the root always has a place
	power    int // how many places there are
	extra    int // how many of them, the first ones, stand for two ranks
}

func pairingOf(r *p2p.Round, root int) pairing {
	power := 1 << (bits.Len(uint(r.Size())) - 1)
	return pairing{me: r.Rank(), root: root, power: power, extra: r.Size() - power}
}

// place is this rank's place, or its neighbour's that it lends to.
func (d pairing) place() int {
	if d.me < 2*d.extra {
		return d.me / 2
	}
	return d.me - d.extra
}

// first is the first of the ranks that a place stands for; of place power, it is
// the number of ranks. So a run of places stands for a run of ranks.
func (d pairing) first(place int) int { return place + min(d.extra, place) }

// rank is the rank that has a place.
func (d pairing) rank(place int) int {
	first := d.first(place)
	if place < d.extra && d.root == first+1 {
		return d.root
	}
	return first
}

// neighbour is the rank that borrows from this one, or lends to it.
func (d pairing) neighbour() int { return d.me ^ 1 }

// lends reports whether this rank has no place.
func (d pairing) lends() bool { return d.rank(d.place()) != d.me }

// borrows reports whether this rank has its neighbour's share, too.
func (d pairing) borrows() bool { return d.me < 2*d.extra && !d.lends() }

// partner is the rank at a distance, in places.
func (d pairing) partner(distance int) int { return d.rank(d.place() ^ distance) }

// side is where another rank's share stands in a fold with this one's.
func (d pairing) side(rank int) p2p.Side {
	if rank < d.me {
		return p2p.Earlier
	}
	return p2p.Later
}

// borrow folds the neighbour's share into buf, if there is one.
func (d pairing) borrow(ctx context.Context, r *p2p.Round, buf []byte, k reduce.Kernel) error {
	if !d.borrows() {
		return nil
	}
	return r.RecvFold(ctx, d.neighbour(), buf, k, d.side(d.neighbour()))
}

// halve leaves in one chunk of buf, which has a chunk for each place, the fold of
// all places' chunk, and returns its number: the place's with its bits in reverse,
// because the nearest partners come first, so that folds are in rank order. The
// rest of buf is left half reduced.
func (d pairing) halve(ctx context.Context, r *p2p.Round, buf chunks, k reduce.Kernel) (own int, err error) {
	for distance, half := 1, d.power/2; distance < d.power; distance, half = distance*2, half/2 {
		keeping, leaving := buf.run(own, own+half), buf.run(own+half, own+2*half)
		if d.place()&distance != 0 {
			keeping, leaving = leaving, keeping
			own += half
		}
		partner := d.partner(distance)
		if err := r.ExchangeFold(ctx, partner, leaving, partner, keeping, k, d.side(partner)); err != nil {
			return own, err
		}
	}
	return own, nil
}

// unhalve leaves on every place all chunks of buf, beside its own, which is where
// halve left it.
func (d pairing) unhalve(ctx context.Context, r *p2p.Round, buf chunks, own int) error {
	for distance, held := d.power/2, 1; distance > 0; distance, held = distance/2, held*2 {
		partner, other := d.partner(distance), own^held
		if err := r.Exchange(ctx, partner, buf.run(own, own+held), partner, buf.run(other, other+held)); err != nil {
			return err
		}
		own = min(own, other)
	}
	return nil
}

// unhalveTo is unhalve for the root alone: of two partners, the one whose place
// differs from the root's gives what it has, and is done.
func (d pairing) unhalveTo(ctx context.Context, r *p2p.Round, buf chunks, own int) error {
	away := d.place() ^ pairing{me: d.root, root: d.root, extra: d.extra}.place()
	for distance, held := d.power/2, 1; distance > 0; distance, held = distance/2, held*2 {
		partner, other := d.partner(distance), own^held
		if away&distance != 0 {
			return r.Send(ctx, partner, buf.run(own, own+held))
		}
		if err := r.Recv(ctx, partner, buf.run(other, other+held)); err != nil {
			return err
		}
		own = min(own, other)
	}
	return nil
}
