package p2p

import (
	"context"
	"sync/atomic"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/cpu"
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
	coreOffset  = 8

	flagSetSize       = 64
	readyOffset       = 8
	fingerprintOffset = 16
	inlineOffset      = 24
	cellSize          = (inlineOffset + SmallSize + 63) / 64 * 64

	// cells are enough for pieces whose share is written when others are up to
	// firstBehind pieces behind: so few stay in the first-level cache.
	cells = 4

	// SmallSize is the most bytes of a small piece.
	SmallSize = 4 << 10
	// SlotSize is the most bytes of one piece: many of them fit into the
	// second-level cache.
	SlotSize = 64 << 10

	// totalSlots is about how many slots the ranks have together, and of which two have
	// mostSlots each. A line that is written again must be taken from the caches of
	// those who read it, which takes several times as long as to fetch it from where
	// all caches have put out what they had no room for. So the slots are more than
	// the second-level caches hold, and less than the third: see docs/adr/0018.
	totalSlots = 64
	maxSlots   = 32
	minSlots   = 3
)

// A slotLayout is how many slots and heads each rank has, and how far ranks may be from
// each other. It is a function of their number, so that all have the same.
//
// A share is written for piece i when all members are Done with piece i-behind, and so
// read none before piece i-behind-lead, which is i-slots+1. Nobody is then further than
// behind pieces past any other, who looks at heads from behind pieces ago on: twice as
// many heads as slots are enough.
type slotLayout struct {
	slots, flagSets int
	lead, maxBehind uint64
}

// newSlotLayout is that of n ranks. heads is a power of two. Three slots let a rank copy
// piece i+1 in while others still read piece i-1.
func newSlotLayout(n int) slotLayout {
	l := slotLayout{slots: maxSlots}
	for l.slots > minSlots && n*l.slots > totalSlots {
		l.slots /= 2
	}
	l.slots = max(l.slots, minSlots)
	l.lead = uint64(l.slots / 4)
	l.maxBehind = uint64(l.slots-1) - l.lead
	for l.flagSets = 1; l.flagSets < 2*l.slots; {
		l.flagSets *= 2
	}
	return l
}

// slotsOffset is where slots begin, for each rank.
func (l slotLayout) slotsOffset() int { return controlSize + cells*cellSize + l.flagSets*flagSetSize }

// SharedSize is how many bytes of shared memory n ranks need: of 2 to 16 at most 5 MiB,
// which become memory only as far as vectors get in them.
func SharedSize(n int) int {
	l := newSlotLayout(n)
	return n * (l.slotsOffset() + l.slots*SlotSize)
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
	slotLayout
	ranks       []int // the job's rank of each
	rank        int   // this process's place among them
	mem         []byte
	words       []uint64 // the same; the heads of notes are read and written atomically
	sleep       []*uint64
	next        uint64       // the number of the next piece
	first       uint64       // that of the operation's first
	slotBytes   int          // bytes of a place of the operation's pieces
	history     smallHistory // what the two before the next operation's first were
	prevHistory smallHistory // what the two before the operation's first were

	mapped   bool             // the race detector does not see what flags in it order
	flagHook func(set func()) // nil: flags are set at once
}

// firstFragment leaves room for the two before it that everyone is done with.
const firstFragment = 2

// SetShared gives the group shared memory of SharedSize bytes, zeroed, that all
// members have. It comes before the group's first round, on all members or none.
func (g *Group) SetShared(mem []byte) { g.all.shared = newShared(g.all, mem) }

// SetHostShared is SetShared for the members on this rank's host, all of which do
// so or none.
func (g *Group) SetHostShared(mem []byte) { g.host.shared = newShared(g.host, mem) }

// SetFlagHook has see called for each flag that this rank is about to set in the
// memory of SetShared. A flag is set when see calls its argument.
func (g *Group) SetFlagHook(hook func(set func())) { g.all.shared.flagHook = hook }

func newShared(on subgroup, mem []byte) *Shared {
	s := &Shared{ranks: on.ranks, rank: on.rank, mem: mem, next: firstFragment, words: tensor.Elements[uint64](mem), slotLayout: newSlotLayout(len(on.ranks))}
	s.mapped = race.IsShared(mem)
	for r := range on.ranks {
		s.sleep = append(s.sleep, s.asleep(r))
	}
	return s
}

// HasShared reports whether the whole group has shared memory.
func (g *Group) HasShared() bool { return g.all.shared != nil }

// HasShared reports whether the round's ranks have shared memory that it may use.
func (r *Round) HasShared() bool { return r.sub.shared != nil }

func (s *Shared) asleep(rank int) *uint64 { return &s.words[rank*controlSize/8] }
func (s *Shared) core(rank int) *uint64   { return &s.words[(rank*controlSize+coreOffset)/8] }

// flag is a field of a rank's head of a piece.
func (s *Shared) flag(rank int, fragment uint64, small bool, at int) *uint64 {
	n := len(s.ranks)
	if small {
		at += n*controlSize + (rank*cells+int(fragment%cells))*cellSize
	} else {
		at += n*(controlSize+cells*cellSize) + (rank*s.flagSets+int(fragment)&(s.flagSets-1))*flagSetSize
	}
	return &s.words[at/8]
}

// smallHistory says which of the firstBehind pieces before another were small.
type smallHistory [firstBehind]bool

// firstBehind is how far others may be behind the first piece of an operation, or any
// small one, when its share is written: not so far as within one, because to look at
// their heads is how a rank that only gives learns that others are in another operation.
const firstBehind = 2

// A Fragment is one step of a collective in shared memory: at most SlotSize bytes
// of each rank's.
type Fragment struct {
	r     *Round
	n     uint64
	small bool // its share lies in the note
}

// Fragments begins n pieces of at most size bytes, which are used in order, and ends
// those before. Every member does so alike.
func (r *Round) Fragments(n, size int) Fragment {
	s := r.sub.shared
	s.first, s.slotBytes, s.prevHistory = s.next, SmallSize, s.history
	s.next += uint64(n)
	small := size <= SmallSize
	for s.slotBytes < size && s.slotBytes < SlotSize {
		s.slotBytes *= 2
	}
	switch {
	case n == 1:
		s.history = smallHistory{small, s.prevHistory[0]}
	case n > 1:
		s.history = smallHistory{small, small}
	}
	return Fragment{r, s.first, small}
}

// Next is the piece after p.
func (p Fragment) Next() Fragment { return Fragment{p.r, p.n + 1, p.small} }

// flag is a field of a rank's head of a piece: one of p's operation, or one of the
// firstBehind before them.
func (p Fragment) flag(rank int, fragment uint64, at int) *uint64 {
	s, small := p.r.sub.shared, p.small
	if fragment < s.first {
		small = s.prevHistory[(s.first-fragment-1)%firstBehind]
	}
	return s.flag(rank, fragment, small, at)
}

// MaxLead is how many pieces beyond the one that it reads a rank may be Done with, within
// an operation of pieces of one stage.
func (r *Round) MaxLead() int { return int(r.sub.shared.lead) }

// Slot is where a member's share of the piece lies, with room for as many bytes as
// Pieces was told, up to SlotSize. A rank writes its own between Claim and Ready, and
// others' never.
func (p Fragment) Slot(rank int) []byte {
	s := p.r.sub.shared
	n := len(s.ranks)
	if p.small {
		at := n*controlSize + (rank*cells+int(p.n%cells))*cellSize + inlineOffset
		return s.mem[at : at+SmallSize : at+SmallSize]
	}
	cycle, slot := int(p.n)/s.slots, int(p.n)%s.slots
	at := n*s.slotsOffset() + (rank*s.slots+slot)*SlotSize + cycle%(SlotSize/s.slotBytes)*s.slotBytes
	return s.mem[at : at+s.slotBytes : at+s.slotBytes]
}

// prefetchNext fetches what the next piece, if it is a small one, needs first, beside whatever this rank does until
// then: the line that it will write, which others have read, and that in which they
// tell that it may. A line takes as long to come as all checks of a call.
func (s *Shared) prefetchNext() {
	cpu.PrefetchWrite(s.flag(s.rank, s.next, true, 0))
	if len(s.ranks) > maxPrefetchRanks {
		return
	}
	for rank := range s.ranks {
		if rank != s.rank {
			cpu.PrefetchRead(s.flag(rank, s.next-firstBehind, s.history[firstBehind-1], 0))
		}
	}
}

// maxPrefetchRanks is of how many ranks the lines are fetched ahead.
const maxPrefetchRanks = 8

// AwaitFree returns when this rank's share may be written. A rank that writes none, but is
// Done before it has waited for another, claims the piece as well: others may still look
// at what lies in its note.
func (p Fragment) AwaitFree(ctx context.Context) error {
	s, last := p.r.sub.shared, p.n-firstBehind
	if !p.small && p.n > s.first {
		last = p.n - min(p.n, s.maxBehind)
		if last <= s.first-firstBehind {
			return nil // that was so when the first was claimed
		}
	}
	if last < firstFragment {
		return nil
	}
	for rank := range s.ranks {
		if rank == s.rank {
			continue
		}
		if err := p.await(ctx, rank, p.flag(rank, last, 0), last); err != nil {
			return err
		}
		if err := p.compareFingerprints(rank, last); err != nil {
			return err
		}
		if p.r.g.tracer != nil {
			p.r.g.tracer(TraceEvent{TraceSawDone, s.ranks[rank], Fragment{p.r, last, p.small}})
		}
	}
	return nil
}

// SetReady publishes this rank's share.
func (p Fragment) SetReady() { p.publish(readyOffset) }

// SetDone publishes that this rank has finished the piece's second stage, or, for a
// piece of one stage, its share.
func (p Fragment) SetDone() { p.publish(0) }

func (p Fragment) publish(at int) {
	s := p.r.sub.shared
	mark, own := p.flag(s.rank, p.n, fingerprintOffset), p.fingerprint()
	if *mark != own {
		storeMark(mark, own)
	}
	if p.r.g.tracer != nil {
		p.r.g.tracer(TraceEvent{flagEventKind(at, TraceSetReady, TraceSetDone), s.ranks[s.rank], p})
	}
	if s.flagHook != nil {
		s.flagHook(func() { p.set(at) })
		return
	}
	p.set(at)
}

// set sets this rank's flag, and wakes who sleeps for it. An operation's first piece
// has the head of a note, too: there a rank looks whose own operation is a small one.
func (p Fragment) set(at int) {
	s := p.r.sub.shared
	flag := p.flag(s.rank, p.n, at)
	if s.mapped {
		race.Release()
	}
	atomic.StoreUint64(flag, p.n)
	if p.n == s.first && !p.small {
		atomic.StoreUint64(s.flag(s.rank, p.n, true, fingerprintOffset), p.fingerprint())
		atomic.StoreUint64(s.flag(s.rank, p.n, true, at), p.n)
	}
	for rank, asleep := range s.sleep { // after the flag: whoever falls asleep looks at it once more
		if atomic.LoadUint64(asleep) != 0 && atomic.CompareAndSwapUint64(asleep, 1, 0) {
			p.r.g.e.WakePeer(s.ranks[rank])
		}
	}
}

// AwaitReady returns when a member's share of the piece can be read.
func (p Fragment) AwaitReady(ctx context.Context, rank int) error {
	return p.awaitAgreed(ctx, rank, readyOffset)
}

// AwaitDone returns when a member is done with the piece.
func (p Fragment) AwaitDone(ctx context.Context, rank int) error { return p.awaitAgreed(ctx, rank, 0) }

// fingerprint is the fingerprint of the operation that the piece belongs to, with all
// that went before it: an operation that moves nothing has no piece.
func (p Fragment) fingerprint() uint64 {
	return p.r.fingerprint ^ (p.r.historyHash+uint64(uint32(p.r.tag)))*0x9e3779b97f4a7c15
}

// awaitAgreed awaits the piece's number in a member's note, and compares
// fingerprints: that member may be in another operation.
func (p Fragment) awaitAgreed(ctx context.Context, rank, at int) error {
	s := p.r.sub.shared
	flag := p.flag(rank, p.n, at)
	if err := p.await(ctx, rank, flag, p.n); err != nil {
		return err
	}
	if s.mapped {
		race.Acquire()
	}
	if rank == s.rank && p.r.g.tracer == nil {
		return nil
	}
	if atomic.LoadUint64(p.flag(rank, p.n, fingerprintOffset)) != p.fingerprint() {
		return p.mismatch(rank)
	}
	if p.r.g.tracer != nil {
		p.r.g.tracer(TraceEvent{flagEventKind(at, TraceSawReady, TraceSawDone), s.ranks[rank], p})
	}
	if !p.small && p.n == s.first && s.prevHistory[0] {
		return nil // its note may have been used again, because this rank is further; the mark tells of it, too
	}
	return p.compareFingerprints(rank, p.n-1)
}

// flagEventKind is ready for the flag that lies there in a note, or else done.
func flagEventKind(at int, ready, done TraceKind) TraceKind {
	if at == readyOffset {
		return ready
	}
	return done
}

// compareFingerprints compares the fingerprints of an earlier piece: a root that only gives
// would not notice otherwise that another rank took itself for the root.
func (p Fragment) compareFingerprints(rank int, fragment uint64) error {
	s := p.r.sub.shared
	if fragment >= firstFragment && atomic.LoadUint64(p.flag(rank, fragment, fingerprintOffset)) != atomic.LoadUint64(p.flag(s.rank, fragment, fingerprintOffset)) {
		return p.mismatch(rank)
	}
	return nil
}

func (p Fragment) mismatch(rank int) error {
	g := p.r.g
	return p.r.fail(&fault.Error{Kind: fault.Mismatch, Op: "collective", Rank: g.ranks[g.rank], Peers: []fault.Peer{{Rank: p.r.sub.shared.ranks[rank]}}})
}
