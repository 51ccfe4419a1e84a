package p2p

import (
	"context"
	"sync/atomic"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/race"
	"github.com/tutti-go/tutti/tensor"
)

// How shared memory is laid out, in bytes: for each rank a control block, then for
// each rank its notes, then for each rank its heads, then for each rank its slots. What
// one rank writes while others poll it has a cache line of its own.
//
//	control block   0  asleep: 1 while this rank waits to be nudged
//	                8  core: where this rank last polled in vain, plus one; 0: nowhere yet
//	head            0  done: the last of its pieces that this rank is done with
//	                8  ready: the last of its pieces whose share lies in place
//	               16  mark: the fingerprint of that piece
//	note            0  the head of a small piece
//	               24  its share, so that it arrives with the head
//	slot            0  the share of any other piece
//
// Piece i has note i mod notes, or else head i mod heads and slot i mod slots. Of a slot
// it takes a part of its own size, another one each time.
const (
	controlSize = 64
	coreAt      = 8

	headSize = 64
	readyAt  = 8
	markAt   = 16
	smallAt  = 24
	noteSize = (smallAt + SmallSize + 63) / 64 * 64

	// notes are enough for pieces whose share is written when others are up to
	// firstBehind pieces behind: so few stay in the first-level cache.
	notes = 4

	// SmallSize is the most bytes of a small piece.
	SmallSize = 4 << 10
	// SlotSize is the most bytes of one piece: many of them fit into the
	// second-level cache.
	SlotSize = 64 << 10

	// allSlots is about how many slots the ranks have together, and of which two have
	// mostSlots each. A line that is written again must be taken from the caches of
	// those who read it, which takes several times as long as to fetch it from where
	// all caches have put out what they had no room for. So the slots are more than
	// the second-level caches hold, and less than the third: see docs/adr/0018.
	allSlots   = 64
	mostSlots  = 32
	leastSlots = 3
)

// A layout is how many slots and heads each rank has, and how far ranks may be from
// each other. It is a function of their number, so that all have the same.
//
// A share is written for piece i when all members are Done with piece i-behind, and so
// read none before piece i-behind-lead, which is i-slots+1. Nobody is then further than
// behind pieces past any other, who looks at heads from behind pieces ago on: twice as
// many heads as slots are enough.
type layout struct {
	slots, heads int
	lead, behind uint64
}

// layoutFor is that of n ranks. heads is a power of two. Three slots let a rank copy
// piece i+1 in while others still read piece i-1.
func layoutFor(n int) layout {
	l := layout{slots: mostSlots}
	for l.slots > leastSlots && n*l.slots > allSlots {
		l.slots /= 2
	}
	l.slots = max(l.slots, leastSlots)
	l.lead = uint64(l.slots / 4)
	l.behind = uint64(l.slots-1) - l.lead
	for l.heads = 1; l.heads < 2*l.slots; {
		l.heads *= 2
	}
	return l
}

// slotsAt is where slots begin, for each rank.
func (l layout) slotsAt() int { return controlSize + notes*noteSize + l.heads*headSize }

// SharedSize is how many bytes of shared memory n ranks need: of 2 to 16 at most 5 MiB,
// which become memory only as far as vectors get in them.
func SharedSize(n int) int {
	l := layoutFor(n)
	return n * (l.slotsAt() + l.slots*SlotSize)
}

// Shared is memory that some members of a group can read and write, as one of
// them uses it: all, or those of a host. The goroutine inside a blocking
// collective uses it, one piece after the other; pieces are numbered alike on all
// members, because every algorithm publishes as many for equal arguments.
//
// A piece has up to two stages. Ready says that a rank's share is in place; Done
// says that what the second stage left is in place, or, for a piece of one stage,
// the share, and that this rank reads no piece any more that is more than Ahead
// pieces before it. The layout says why nothing is overwritten that is still read.
type Shared struct {
	layout
	ranks []int // the job's rank of each
	rank  int   // this process's place among them
	mem   []byte
	words []uint64 // the same; the heads of notes are read and written atomically
	sleep []*uint64
	piece uint64 // the number of the next piece
	first uint64 // that of the operation's first
	room  int    // bytes of a place of the operation's pieces
	past  past   // what the two before the next operation's first were
	prior past   // what the two before the operation's first were

	mapped  bool             // the race detector does not see what flags in it order
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
	s := &Shared{ranks: on.ranks, rank: on.rank, mem: mem, piece: firstPiece, words: tensor.Elements[uint64](mem), layout: layoutFor(len(on.ranks))}
	s.mapped = race.IsShared(mem)
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

// head is a field of a rank's head of a piece.
func (s *Shared) head(rank int, piece uint64, small bool, at int) *uint64 {
	n := len(s.ranks)
	if small {
		at += n*controlSize + (rank*notes+int(piece%notes))*noteSize
	} else {
		at += n*(controlSize+notes*noteSize) + (rank*s.heads+int(piece)&(s.heads-1))*headSize
	}
	return &s.words[at/8]
}

// past says which of the firstBehind pieces before another were small.
type past [firstBehind]bool

// firstBehind is how far others may be behind the first piece of an operation, or any
// small one, when its share is written: not so far as within one, because to look at
// their heads is how a rank that only gives learns that others are in another operation.
const firstBehind = 2

// A Piece is one step of a collective in shared memory: at most SlotSize bytes
// of each rank's.
type Piece struct {
	r     *Round
	n     uint64
	small bool // its share lies in the note
}

// Pieces begins n pieces of at most size bytes, which are used in order, and ends
// those before. Every member does so alike.
func (r *Round) Pieces(n, size int) Piece {
	s := r.on.shared
	s.first, s.room, s.prior = s.piece, SmallSize, s.past
	s.piece += uint64(n)
	small := size <= SmallSize
	for s.room < size && s.room < SlotSize {
		s.room *= 2
	}
	switch {
	case n == 1:
		s.past = past{small, s.prior[0]}
	case n > 1:
		s.past = past{small, small}
	}
	return Piece{r, s.first, small}
}

// Next is the piece after p.
func (p Piece) Next() Piece { return Piece{p.r, p.n + 1, p.small} }

// word is a field of a rank's head of a piece: one of p's operation, or one of the
// firstBehind before them.
func (p Piece) word(rank int, piece uint64, at int) *uint64 {
	s, small := p.r.on.shared, p.small
	if piece < s.first {
		small = s.prior[(s.first-piece-1)%firstBehind]
	}
	return s.head(rank, piece, small, at)
}

// Ahead is how many pieces beyond the one that it reads a rank may be Done with, within
// an operation of pieces of one stage.
func (r *Round) Ahead() int { return int(r.on.shared.lead) }

// Slot is where a member's share of the piece lies, with room for as many bytes as
// Pieces was told, up to SlotSize. A rank writes its own between Claim and Ready, and
// others' never.
func (p Piece) Slot(rank int) []byte {
	s := p.r.on.shared
	n := len(s.ranks)
	if p.small {
		at := n*controlSize + (rank*notes+int(p.n%notes))*noteSize + smallAt
		return s.mem[at : at+SmallSize : at+SmallSize]
	}
	lap, slot := int(p.n)/s.slots, int(p.n)%s.slots
	at := n*s.slotsAt() + (rank*s.slots+slot)*SlotSize + lap%(SlotSize/s.room)*s.room
	return s.mem[at : at+s.room : at+s.room]
}

// ahead fetches what the next piece, if it is a small one, needs first, beside whatever this rank does until
// then: the line that it will write, which others have read, and that in which they
// tell that it may. A line takes as long to come as all checks of a call.
func (s *Shared) ahead() {
	fetchToWrite(s.head(s.rank, s.piece, true, 0))
	if len(s.ranks) > aheadMost {
		return
	}
	for rank := range s.ranks {
		if rank != s.rank {
			fetchToRead(s.head(rank, s.piece-firstBehind, s.past[firstBehind-1], 0))
		}
	}
}

// aheadMost is of how many ranks the lines are fetched ahead.
const aheadMost = 8

// Claim returns when this rank's share may be written. A rank that writes none, but is
// Done before it has waited for another, claims the piece as well: others may still look
// at what lies in its note.
func (p Piece) Claim(ctx context.Context) error {
	s, last := p.r.on.shared, p.n-firstBehind
	if !p.small && p.n > s.first {
		last = p.n - min(p.n, s.behind)
		if last <= s.first-firstBehind {
			return nil // that was so when the first was claimed
		}
	}
	if last < firstPiece {
		return nil
	}
	for rank := range s.ranks {
		if rank == s.rank {
			continue
		}
		if err := p.await(ctx, rank, p.word(rank, last, 0), last); err != nil {
			return err
		}
		if err := p.compare(rank, last); err != nil {
			return err
		}
		if p.r.g.see != nil {
			p.r.g.see(Sight{SeesDone, s.ranks[rank], Piece{p.r, last, p.small}})
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
	mark, own := p.word(s.rank, p.n, markAt), p.mark()
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

// set sets this rank's flag, and wakes who sleeps for it. An operation's first piece
// has the head of a note, too: there a rank looks whose own operation is a small one.
func (p Piece) set(at int) {
	s := p.r.on.shared
	flag := p.word(s.rank, p.n, at)
	if s.mapped {
		race.Release()
	}
	atomic.StoreUint64(flag, p.n)
	if p.n == s.first && !p.small {
		atomic.StoreUint64(s.head(s.rank, p.n, true, markAt), p.mark())
		atomic.StoreUint64(s.head(s.rank, p.n, true, at), p.n)
	}
	for rank, asleep := range s.sleep { // after the flag: whoever falls asleep looks at it once more
		if atomic.LoadUint64(asleep) != 0 && atomic.CompareAndSwapUint64(asleep, 1, 0) {
			p.r.g.e.WakePeer(s.ranks[rank])
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
	flag := p.word(rank, p.n, at)
	if err := p.await(ctx, rank, flag, p.n); err != nil {
		return err
	}
	if s.mapped {
		race.Acquire()
	}
	if rank == s.rank && p.r.g.see == nil {
		return nil
	}
	if atomic.LoadUint64(p.word(rank, p.n, markAt)) != p.mark() {
		return p.disagree(rank)
	}
	if p.r.g.see != nil {
		p.r.g.see(Sight{flagAct(at, SeesReady, SeesDone), s.ranks[rank], p})
	}
	if !p.small && p.n == s.first && s.prior[0] {
		return nil // its note may have been used again, because this rank is further; the mark tells of it, too
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
	if piece >= firstPiece && atomic.LoadUint64(p.word(rank, piece, markAt)) != atomic.LoadUint64(p.word(s.rank, piece, markAt)) {
		return p.disagree(rank)
	}
	return nil
}

func (p Piece) disagree(rank int) error {
	g := p.r.g
	return p.r.fail(&fault.Error{Kind: fault.Mismatch, Op: "collective", Rank: g.ranks[g.rank], Peers: []fault.Peer{{Rank: p.r.on.shared.ranks[rank]}}})
}
