package p2p

import (
	"context"
	"sync/atomic"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/rendezvous"
	"github.com/tutti-go/tutti/tensor"
)

// How a group's shared memory is laid out, in bytes: for each member a control
// block, then for each member its slots. Every field that one rank writes while
// others poll it has a cache line of its own.
//
//	control block   0  ready: the last piece whose share lies in this rank's slot
//	                8  done: the last piece that this rank is done with
//	               16  print: the marks of its last four pieces
//	              192  asleep: 1 while this rank waits to be nudged
const (
	controlSize = 256
	doneAt      = 8
	printAt     = 16
	asleepAt    = 192

	// Slots is how many pieces a member can have in its part of the memory.
	// Three let a rank copy piece i+1 in while others still read piece i-1.
	Slots = 3
	// SlotSize is the most bytes of one piece: small enough that the slots of
	// a few ranks stay in the second-level cache.
	SlotSize = 64 << 10
)

// SharedSize is how many bytes of shared memory n ranks need.
func SharedSize(n int) int { return n * (controlSize + Slots*SlotSize) }

// Shared is memory that some members of a group can read and write, as one of
// them uses it: all, or those of a host. The goroutine inside a blocking collective uses it, one piece
// after the other; pieces are numbered alike on all members, because every
// algorithm publishes as many for equal arguments.
//
// A piece has up to two stages. Ready says that a rank's slot holds its share;
// Done says that the slot holds what the second stage left there, or, for a piece
// of one stage, the share, and that this rank reads no earlier piece any more. A
// slot is written for piece i only when all members are Done with piece i-2, and
// so do not read piece i-3, which lay in the same slot.
type Shared struct {
	ranks []int // the job's rank of each
	rank  int   // this process's place among them
	mem   []byte
	words []uint64 // the control blocks; read and written atomically
	ready []*uint64
	done  []*uint64
	sleep []*uint64
	piece uint64 // the number of the next piece
}

// firstPiece leaves room for the two before it that everyone is done with.
const firstPiece = 2

// SetShared gives the group shared memory of SharedSize bytes, zeroed, that all
// members have. It comes before the group's first round, on all members or none.
func (g *Group) SetShared(mem []byte) { g.all.shared = newShared(g.all, mem) }

// SetHostShared is SetShared for the members on this rank's host, all of which do
// so or none.
func (g *Group) SetHostShared(mem []byte) { g.host.shared = newShared(g.host, mem) }

func newShared(on party, mem []byte) *Shared {
	s := &Shared{ranks: on.ranks, rank: on.rank, mem: mem, piece: firstPiece, words: tensor.Elements[uint64](mem[:len(on.ranks)*controlSize])}
	for r := range on.ranks {
		s.ready = append(s.ready, s.word(r, 0))
		s.done = append(s.done, s.word(r, doneAt))
		s.sleep = append(s.sleep, s.word(r, asleepAt))
	}
	return s
}

// HasShared reports whether the whole group has shared memory.
func (g *Group) HasShared() bool { return g.all.shared != nil }

// HasShared reports whether the round's ranks have shared memory that it may use.
func (r *Round) HasShared() bool { return r.on.shared != nil }

// Slot is a member's slot for a piece.
func (s *Shared) slot(rank int, piece uint64) []byte {
	at := len(s.done)*controlSize + (rank*Slots+int(piece%Slots))*SlotSize
	return s.mem[at : at+SlotSize : at+SlotSize]
}

// word is a field of a member's control block.
func (s *Shared) word(rank, at int) *uint64 { return &s.words[(rank*controlSize+at)/8] }

func (s *Shared) print(rank int, piece uint64) *uint64 {
	return s.word(rank, printAt+8*int(piece%4))
}

// A Piece is one step of a collective in shared memory: at most SlotSize bytes
// of each rank's.
type Piece struct {
	r *Round
	n uint64
}

// Pieces begins n pieces, which are used in order. Every member does so alike.
func (r *Round) Pieces(n int) Piece {
	s := r.on.shared
	first := s.piece
	s.piece += uint64(n)
	return Piece{r, first}
}

// Next is the piece after p.
func (p Piece) Next() Piece { return Piece{p.r, p.n + 1} }

// Slot is where a member's share of the piece lies, SlotSize bytes. A rank
// writes its own between Claim and Ready, and others' never.
func (p Piece) Slot(rank int) []byte { return p.r.on.shared.slot(rank, p.n) }

// Claim returns when this rank's slot may be written.
func (p Piece) Claim(ctx context.Context) error {
	if p.n < firstPiece+2 {
		return nil
	}
	for rank, flag := range p.r.on.shared.done {
		if err := p.await(ctx, rank, flag, p.n-2); err != nil {
			return err
		}
		if err := p.compare(rank, p.n-2); err != nil {
			return err
		}
	}
	return nil
}

// Ready publishes this rank's share.
func (p Piece) Ready() { p.publish(p.r.on.shared.ready) }

// Done publishes that this rank has finished the piece's second stage, or, for a
// piece of one stage, its share.
func (p Piece) Done() { p.publish(p.r.on.shared.done) }

func (p Piece) publish(flags []*uint64) {
	s := p.r.on.shared
	atomic.StoreUint64(s.print(s.rank, p.n), p.mark())
	atomic.StoreUint64(flags[s.rank], p.n)
	for rank, asleep := range s.sleep { // after the flag: whoever falls asleep looks at it once more
		if atomic.LoadUint64(asleep) != 0 && atomic.CompareAndSwapUint64(asleep, 1, 0) {
			p.r.g.e.Nudge(s.ranks[rank])
		}
	}
}

// AwaitReady returns when a member's share of the piece can be read.
func (p Piece) AwaitReady(ctx context.Context, rank int) error {
	return p.awaitAgreed(ctx, rank, p.r.on.shared.ready[rank])
}

// AwaitDone returns when a member is done with the piece.
func (p Piece) AwaitDone(ctx context.Context, rank int) error {
	return p.awaitAgreed(ctx, rank, p.r.on.shared.done[rank])
}

// mark is the fingerprint of the operation that the piece belongs to, with all
// that went before it: an operation that moves nothing has no piece.
func (p Piece) mark() uint64 {
	return p.r.print ^ (p.r.trail+uint64(uint32(p.r.tag)))*0x9e3779b97f4a7c15
}

// awaitAgreed awaits the piece's number in a member's flag, and compares
// fingerprints: that member may be in another operation.
func (p Piece) awaitAgreed(ctx context.Context, rank int, flag *uint64) error {
	if err := p.await(ctx, rank, flag, p.n); err != nil {
		return err
	}
	if atomic.LoadUint64(p.r.on.shared.print(rank, p.n)) != p.mark() {
		return p.disagree(rank)
	}
	return p.compare(rank, p.n-1)
}

// compare compares the fingerprints of an earlier piece: a root that only gives
// would not notice otherwise that another rank took itself for the root.
func (p Piece) compare(rank int, piece uint64) error {
	s := p.r.on.shared
	if piece >= firstPiece && atomic.LoadUint64(s.print(rank, piece)) != atomic.LoadUint64(s.print(s.rank, piece)) {
		return p.disagree(rank)
	}
	return nil
}

func (p Piece) disagree(rank int) error {
	g := p.r.g
	return p.r.fail(&fault.Error{Kind: fault.Mismatch, Op: "collective", Rank: g.ranks[g.rank], Peers: []fault.Peer{{Rank: p.r.on.shared.ranks[rank]}}})
}

// How a rank polls a flag: by itself, and when that was in vain, giving the core
// away each time; then it sleeps until it is nudged.
const (
	flagSpins  = 2000
	flagYields = 200
	lookEvery  = 256
)

// await returns when a member's flag shows count.
func (p Piece) await(ctx context.Context, rank int, flag *uint64, count uint64) error {
	if atomic.LoadUint64(flag) >= count {
		return nil
	}
	spins := flagSpins
	if p.r.g.e.Mesh().Crowded() {
		spins = 20
	}
	for i := range spins {
		if atomic.LoadUint64(flag) >= count {
			return nil
		}
		if i%lookEvery == lookEvery-1 && (ctx.Err() != nil || p.r.g.coll.Dead()) {
			break
		}
	}
	for range flagYields {
		if atomic.LoadUint64(flag) >= count {
			return nil
		}
		p.r.g.e.Mesh().Yield()
	}
	return p.sleep(ctx, rank, flag, count)
}

// sleep parks until a member's flag shows count, or the wait is over.
func (p Piece) sleep(ctx context.Context, rank int, flag *uint64, count uint64) error {
	g, s := p.r.g, p.r.on.shared
	ev := &p.r.flag
	*ev = flagEvent{coll: g.coll, e: g.e, world: s.ranks[rank], flag: flag, asleep: s.sleep[s.rank], count: count}
	err := g.coll.Await(ctx, p.r.p, ev)
	atomic.StoreUint64(s.sleep[s.rank], 0)
	if err == nil && atomic.LoadUint64(ev.flag) < count {
		if err = g.coll.Err(); err == nil {
			err = g.e.Gone(ev.world)
		}
	}
	if err != nil {
		return p.r.fail(err)
	}
	return nil
}

// flagEvent is the event that a flag shows a count, or never will: the group's
// collectives are revoked, or the flag's rank has gone. Looking at it in vain
// leaves the wish to be nudged.
type flagEvent struct {
	coll   *rendezvous.Space
	e      *rendezvous.Engine
	world  int // the job's rank of the flag's owner
	flag   *uint64
	asleep *uint64
	count  uint64
}

// Happened implements mesh.Event.
func (ev *flagEvent) Happened() bool {
	if atomic.LoadUint64(ev.flag) >= ev.count || ev.coll.Dead() || ev.e.Gone(ev.world) != nil {
		return true
	}
	atomic.StoreUint64(ev.asleep, 1)
	return atomic.LoadUint64(ev.flag) >= ev.count
}

var _ mesh.Event = (*flagEvent)(nil)
