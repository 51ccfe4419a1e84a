package p2p

import (
	"context"
	"sync/atomic"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/tensor"
)

// How shared memory is laid out, in bytes: for each rank a control block, then for
// each rank its notes, then for each rank its slots. What one rank writes while
// others poll it has a cache line of its own.
//
//	control block   0  asleep: 1 while this rank waits to be nudged
//	                8  core: where this rank last polled in vain, plus one; 0: nowhere yet
//	note            0  done: the last of its pieces that this rank is done with
//	                8  ready: the last of its pieces whose share lies in place
//	               16  mark: the fingerprint of that piece
//	               24  the share of a small piece, so that it arrives with the note
//	slot            0  the share of any other
//
// Piece i has note i mod notes and slot i mod slots.
const (
	controlSize = 64
	coreAt      = 8

	notes    = 4
	readyAt  = 8
	markAt   = 16
	smallAt  = 24
	noteSize = (smallAt + SmallSize + 63) / 64 * 64

	// slots is how many pieces a rank can have in its part of the memory. Three
	// let it copy piece i+1 in while others still read piece i-1.
	slots = 3

	// SmallSize is the most bytes of a small piece.
	SmallSize = 4 << 10
	// SlotSize is the most bytes of one piece: small enough that the slots of
	// a few ranks stay in the second-level cache.
	SlotSize = 64 << 10
)

// SharedSize is how many bytes of shared memory n ranks need.
func SharedSize(n int) int { return n * (controlSize + notes*noteSize + slots*SlotSize) }

// Shared is memory that some members of a group can read and write, as one of
// them uses it: all, or those of a host. The goroutine inside a blocking
// collective uses it, one piece after the other; pieces are numbered alike on all
// members, because every algorithm publishes as many for equal arguments.
//
// A piece has up to two stages. Ready says that a rank's share is in place; Done
// says that what the second stage left is in place, or, for a piece of one stage,
// the share, and that this rank reads no earlier piece any more. A share is
// written for piece i only when all members are Done with piece i-2, and so do not
// read piece i-3, which lay in the same slot. By then no rank is past piece i+1,
// whose note is another: so notes of pieces i-2 to i can still be looked at.
type Shared struct {
	ranks []int // the job's rank of each
	rank  int   // this process's place among them
	mem   []byte
	words []uint64 // the same; the heads of notes are read and written atomically
	sleep []*uint64
	piece uint64 // the number of the next piece

	witness func(set func()) // nil: flags are set at once
}

// firstPiece leaves room for the two before it that everyone is done with.
const firstPiece = 2

// SetShared gives the group shared memory of SharedSize bytes, zeroed, that all
// members have. It comes before the group's first round, on all members or none.
func (g *Group) SetShared(mem []byte) { g.all.shared = newShared(g.all, mem) }

// SetHostShared is SetShared for the members on this rank's host, all of which do
// so or none.
func (g *Group) SetHostShared(mem []byte) { g.host.shared = newShared(g.host, mem) }

// WitnessShared has see called for each flag that this rank is about to set in the
// memory of SetShared. A flag is set when see calls its argument.
func (g *Group) WitnessShared(see func(set func())) { g.all.shared.witness = see }

func newShared(on party, mem []byte) *Shared {
	s := &Shared{ranks: on.ranks, rank: on.rank, mem: mem, piece: firstPiece, words: tensor.Elements[uint64](mem)}
	for r := range on.ranks {
		s.sleep = append(s.sleep, s.asleep(r))
	}
	return s
}

// HasShared reports whether the whole group has shared memory.
func (g *Group) HasShared() bool { return g.all.shared != nil }

// HasShared reports whether the round's ranks have shared memory that it may use.
func (r *Round) HasShared() bool { return r.on.shared != nil }

func (s *Shared) asleep(rank int) *uint64 { return &s.words[rank*controlSize/8] }
func (s *Shared) core(rank int) *uint64   { return &s.words[(rank*controlSize+coreAt)/8] }

// note is where a rank's note of a piece begins.
func (s *Shared) note(rank int, piece uint64) int {
	return len(s.ranks)*controlSize + (rank*notes+int(piece%notes))*noteSize
}

// word is a field of a rank's note of a piece.
func (s *Shared) word(rank int, piece uint64, at int) *uint64 {
	return &s.words[(s.note(rank, piece)+at)/8]
}

// A Piece is one step of a collective in shared memory: at most SlotSize bytes
// of each rank's.
type Piece struct {
	r     *Round
	n     uint64
	small bool
}

// Pieces begins n pieces of at most size bytes, which are used in order. Every
// member does so alike.
func (r *Round) Pieces(n, size int) Piece {
	s := r.on.shared
	first := s.piece
	s.piece += uint64(n)
	return Piece{r, first, size <= SmallSize}
}

// Next is the piece after p.
func (p Piece) Next() Piece { return Piece{p.r, p.n + 1, p.small} }

// Slot is where a member's share of the piece lies: SlotSize bytes, or SmallSize
// for a small piece. A rank writes its own between Claim and Ready, and others'
// never.
func (p Piece) Slot(rank int) []byte {
	s := p.r.on.shared
	if p.small {
		at := s.note(rank, p.n) + smallAt
		return s.mem[at : at+SmallSize : at+SmallSize]
	}
	at := len(s.ranks)*(controlSize+notes*noteSize) + (rank*slots+int(p.n%slots))*SlotSize
	return s.mem[at : at+SlotSize : at+SlotSize]
}

// ahead fetches what the next piece needs first, beside whatever this rank does until
// then: the line that it will write, which others have read, and that in which they
// tell that it may. A line takes as long to come as all checks of a call.
func (s *Shared) ahead() {
	fetchToWrite(s.word(s.rank, s.piece, 0))
	if len(s.ranks) > aheadMost {
		return
	}
	for rank := range s.ranks {
		if rank != s.rank {
			fetchToRead(s.word(rank, s.piece-2, 0))
		}
	}
}

// aheadMost is of how many ranks the lines are fetched ahead.
const aheadMost = 8

// Claim returns when this rank's share may be written.
func (p Piece) Claim(ctx context.Context) error {
	if p.n < firstPiece+2 {
		return nil
	}
	s := p.r.on.shared
	for rank := range s.ranks {
		if rank == s.rank {
			continue
		}
		if err := p.await(ctx, rank, s.word(rank, p.n-2, 0), p.n-2); err != nil {
			return err
		}
		if err := p.compare(rank, p.n-2); err != nil {
			return err
		}
		if p.r.g.see != nil {
			p.r.g.see(Sight{SeesDone, s.ranks[rank], Piece{p.r, p.n - 2, p.small}})
		}
	}
	return nil
}

// Ready publishes this rank's share.
func (p Piece) Ready() { p.publish(readyAt) }

// Done publishes that this rank has finished the piece's second stage, or, for a
// piece of one stage, its share.
func (p Piece) Done() { p.publish(0) }

func (p Piece) publish(at int) {
	s := p.r.on.shared
	mark, own := s.word(s.rank, p.n, markAt), p.mark()
	if *mark != own {
		storeMark(mark, own)
	}
	if p.r.g.see != nil {
		p.r.g.see(Sight{flagAct(at, ShowsReady, ShowsDone), s.ranks[s.rank], p})
	}
	if s.witness != nil {
		s.witness(func() { p.set(at) })
		return
	}
	p.set(at)
}

// set sets this rank's flag, and wakes who sleeps for it.
func (p Piece) set(at int) {
	s := p.r.on.shared
	atomic.StoreUint64(s.word(s.rank, p.n, at), p.n)
	for rank, asleep := range s.sleep { // after the flag: whoever falls asleep looks at it once more
		if atomic.LoadUint64(asleep) != 0 && atomic.CompareAndSwapUint64(asleep, 1, 0) {
			p.r.g.e.Nudge(s.ranks[rank])
		}
	}
}

// AwaitReady returns when a member's share of the piece can be read.
func (p Piece) AwaitReady(ctx context.Context, rank int) error {
	return p.awaitAgreed(ctx, rank, readyAt)
}

// AwaitDone returns when a member is done with the piece.
func (p Piece) AwaitDone(ctx context.Context, rank int) error { return p.awaitAgreed(ctx, rank, 0) }

// mark is the fingerprint of the operation that the piece belongs to, with all
// that went before it: an operation that moves nothing has no piece.
func (p Piece) mark() uint64 {
	return p.r.print ^ (p.r.trail+uint64(uint32(p.r.tag)))*0x9e3779b97f4a7c15
}

// awaitAgreed awaits the piece's number in a member's note, and compares
// fingerprints: that member may be in another operation.
func (p Piece) awaitAgreed(ctx context.Context, rank, at int) error {
	s := p.r.on.shared
	if err := p.await(ctx, rank, s.word(rank, p.n, at), p.n); err != nil {
		return err
	}
	if rank == s.rank && p.r.g.see == nil {
		return nil
	}
	if atomic.LoadUint64(s.word(rank, p.n, markAt)) != p.mark() {
		return p.disagree(rank)
	}
	if p.r.g.see != nil {
		p.r.g.see(Sight{flagAct(at, SeesReady, SeesDone), s.ranks[rank], p})
	}
	return p.compare(rank, p.n-1)
}

// flagAct is ready for the flag that lies there in a note, or else done.
func flagAct(at int, ready, done Act) Act {
	if at == readyAt {
		return ready
	}
	return done
}

// compare compares the fingerprints of an earlier piece: a root that only gives
// would not notice otherwise that another rank took itself for the root.
func (p Piece) compare(rank int, piece uint64) error {
	s := p.r.on.shared
	if piece >= firstPiece && atomic.LoadUint64(s.word(rank, piece, markAt)) != atomic.LoadUint64(s.word(s.rank, piece, markAt)) {
		return p.disagree(rank)
	}
	return nil
}

func (p Piece) disagree(rank int) error {
	g := p.r.g
	return p.r.fail(&fault.Error{Kind: fault.Mismatch, Op: "collective", Rank: g.ranks[g.rank], Peers: []fault.Peer{{Rank: p.r.on.shared.ranks[rank]}}})
}
