package p2p

import (
	"context"
	"sync/atomic"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/cpu"
	"github.com/tutti-go/tutti/internal/race"
	"github.com/tutti-go/tutti/tensor"
)

// Shared memory holds, in bytes: for each rank a control block, then for each rank its cells, then
// for each rank its flag sets, then for each rank its slots. What one rank writes while others poll
// it has a cache line of its own.
//
//	control block   0  asleep: 1 while this rank waits to be woken
//	                8  core: where this rank last polled without success, plus one; 0: none yet
//	flag set        0  done: the newest of its fragments that this rank is done with
//	                8  ready: the newest of its fragments whose share is in memory
//	               16  fingerprint of that fragment's operation
//	cell            0  the flag set of a small fragment
//	               24  its share, so that it arrives with the flags
//	slot            0  the share of any other fragment
//
// Fragment i has cell i mod cells, or else flag set i mod flagSets and slot i mod slots. It uses a
// part of the slot of its own size, another one each time.
const (
	controlSize = 64
	coreOffset  = 8

	flagSetSize       = 64
	readyOffset       = 8
	fingerprintOffset = 16
	inlineOffset      = 24
	cellSize          = (inlineOffset + SmallSize + 63) / 64 * 64

	// cells are enough for fragments whose share is written when others are up to
	// firstBehind fragments behind, and few enough to stay in the first-level cache.
	cells = 4

	// SmallSize is the most bytes of a small fragment.
	SmallSize = 4 << 10
	// SlotSize is the most bytes of a fragment: many of them fit into the
	// second-level cache.
	SlotSize = 64 << 10

	// totalSlots is about how many slots the ranks have together; two ranks have maxSlots each. A
	// cache line that is written again must be taken from the caches of its readers, which takes
	// several times as long as to fetch it after their caches have evicted it. So the slots are
	// larger than the second-level caches, and smaller than the third: see docs/adr/0018.
	totalSlots = 64
	maxSlots   = 32
	minSlots   = 3
)

// A slotLayout is how many slots and flag sets each rank has, and how far ranks may be from each
// other. It is a function of the number of ranks, so all compute the same.
//
// A share is written for fragment i when all members are done with fragment i-maxBehind. They then
// read none before i-maxBehind-lead, which is i-slots+1, so no slot is overwritten that is still
// read. No rank is more than maxBehind fragments ahead of another, and it looks at flags from
// maxBehind fragments ago on: twice as many flag sets as slots are enough.
type slotLayout struct {
	slots, flagSets int    // flagSets is a power of two
	lead, maxBehind uint64 // fragments
}

// newSlotLayout returns the layout of n ranks. At least three slots let a rank copy fragment i+1 in
// while others still read fragment i-1.
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

// slotsOffset is the bytes before the slots, per rank.
func (l slotLayout) slotsOffset() int { return controlSize + cells*cellSize + l.flagSets*flagSetSize }

// SharedSize is how many bytes of shared memory n ranks need: at most 5 MiB for 2 to 16 of them.
// Pages are used only as far as vectors get in them.
func SharedSize(n int) int {
	l := newSlotLayout(n)
	return n * (l.slotsOffset() + l.slots*SlotSize)
}

// Shared is memory that some members of a group can read and write, as one of them uses it: all
// members, or those of a host. The goroutine inside a blocking collective uses it, one fragment
// after the other. Fragments are numbered alike on all members, because every algorithm uses the
// same number of them for equal arguments.
//
// A fragment has up to two stages, each with a flag per rank:
//
//	flag   set by      promises
//	ready  SetReady    the rank's share is in memory
//	done   SetDone     what the second stage left is in memory, or, for a fragment of one
//	                   stage, the share; and the rank reads no fragment any more that is
//	                   more than MaxLead fragments older
//
// A flag holds the number of a fragment and only grows. An owner stores its data, then the flag; a
// reader loads the flag, then the data. slotLayout says why nothing is overwritten that is still
// read.
type Shared struct {
	slotLayout
	ranks []int // the job's rank of each
	rank  int   // this process's index in ranks

	// mem is the memory, and words the same as words: flags are read and written atomically. sleep
	// are the asleep words of the ranks.
	mem   []byte
	words []uint64
	sleep []*uint64

	// next is the number of the next fragment, and first that of the current operation's first one.
	next  uint64
	first uint64

	// slotBytes is how many bytes of a slot each of the operation's fragments uses.
	slotBytes int

	// history is of the fragments before the next operation's first, and prevHistory of those before
	// the current operation's.
	history     smallHistory
	prevHistory smallHistory

	// mapped: the memory is from outside the heap, so the race detector does not see what its flags
	// order and must be told.
	mapped bool

	// flagHook is nil in programs; see SetFlagHook.
	flagHook func(set func())
}

// firstFragment leaves room for the two fragments before it, which every rank is done with.
const firstFragment = 2

// SetShared gives the group shared memory of SharedSize bytes, zeroed, that all members have
// mapped. It comes before the group's first round, on all members or none.
func (g *Group) SetShared(mem []byte) { g.all.shared = newShared(g.all, mem) }

// SetHostShared is SetShared for the members on this rank's host, on all of those or none.
func (g *Group) SetHostShared(mem []byte) { g.host.shared = newShared(g.host, mem) }

// SetFlagHook lets hook be called for each flag that this rank is about to set in the memory of
// SetShared. The flag is set when hook calls its argument. Tests fail a rank before and after each
// flag with it.
func (g *Group) SetFlagHook(hook func(set func())) { g.all.shared.flagHook = hook }

// newShared returns one rank's view of shared memory.
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

// asleep is the word that a rank sets to 1 while it waits to be woken.
func (s *Shared) asleep(rank int) *uint64 { return &s.words[rank*controlSize/8] }

// core is the word that says on which core a rank last polled.
func (s *Shared) core(rank int) *uint64 { return &s.words[(rank*controlSize+coreOffset)/8] }

// flag returns a word of a rank's flag set of a fragment; at is its offset there.
func (s *Shared) flag(rank int, fragment uint64, small bool, at int) *uint64 {
	n := len(s.ranks)
	if small {
		at += n*controlSize + (rank*cells+int(fragment%cells))*cellSize
	} else {
		at += n*(controlSize+cells*cellSize) + (rank*s.flagSets+int(fragment)&(s.flagSets-1))*flagSetSize
	}
	return &s.words[at/8]
}

// A smallHistory says which of the firstBehind fragments before another one were small, because
// those have their flags in cells.
type smallHistory [firstBehind]bool

// firstBehind is how many fragments others may be behind the first fragment of an operation, or any
// small one, when its share is written. It is less than maxBehind within an operation: by looking
// at their flags a rank that only sends learns that others are in another operation.
const firstBehind = 2

// A Fragment is one step of a collective in shared memory: at most SlotSize bytes of each rank's. A
// rank goes through it in this order; a rank that writes no share leaves out what it does not need:
//
//	AwaitFree → write Slot(own rank) → SetReady → AwaitReady(others) → read → SetDone
//
// A fragment of one stage has no ready flag: SetDone publishes the share, and AwaitDone awaits it.
type Fragment struct {
	r     *Round
	n     uint64 // its number
	small bool   // its flags and share are in a cell
}

// Fragments begins n fragments of at most size bytes, which are used in order, and ends those
// before them. It returns the first. Every member calls it with the same arguments.
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

// Next returns the fragment after p.
func (p Fragment) Next() Fragment { return Fragment{p.r, p.n + 1, p.small} }

// flag returns a word of a rank's flag set of a fragment: one of p's operation, or one of the
// firstBehind before them.
func (p Fragment) flag(rank int, fragment uint64, at int) *uint64 {
	s, small := p.r.sub.shared, p.small
	if fragment < s.first {
		small = s.prevHistory[(s.first-fragment-1)%firstBehind]
	}
	return s.flag(rank, fragment, small, at)
}

// MaxLead is how many fragments beyond the one that it reads a rank may be done with, within an
// operation of fragments of one stage.
func (r *Round) MaxLead() int { return int(r.sub.shared.lead) }

// Slot returns where a member's share of the fragment is, with room for as many bytes as Fragments
// was told, up to SlotSize. A rank writes its own between AwaitFree and SetReady, and never writes
// another's.
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

// prefetchNext prefetches the cache lines that a small operation touches first: the line that this
// rank will write, which others have read, and those in which they say that it may. A line takes as
// long to arrive as all checks of a call, so the two overlap.
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

// maxPrefetchRanks is the most ranks whose lines are prefetched.
const maxPrefetchRanks = 8

// AwaitFree returns when this rank's share may be written. A rank that writes none, but is done
// before it has waited for another, calls it too: others may still read what is in its cell.
func (p Fragment) AwaitFree(ctx context.Context) error {
	s, last := p.r.sub.shared, p.n-firstBehind
	if !p.small && p.n > s.first {
		last = p.n - min(p.n, s.maxBehind)
		if last <= s.first-firstBehind {
			return nil // the operation's first fragment has waited for that already
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

// SetDone publishes that this rank has finished the fragment's second stage, or, for a fragment of
// one stage, its share.
func (p Fragment) SetDone() { p.publish(0) }

// publish writes the operation's fingerprint next to the flag at this offset, and then sets the
// flag.
func (p Fragment) publish(at int) {
	s := p.r.sub.shared
	// The fingerprint is the same for all flags of an operation, so it may be there already. To
	// store it again would cost the line a round through the caches of those who poll it.
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

// set sets this rank's flag and wakes the ranks that sleep for it. An operation's first fragment
// sets the flags of a cell, too: there a rank looks that is in an operation of small fragments, and
// so finds the mismatch.
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
	for rank, asleep := range s.sleep { // after the flag: a rank that falls asleep reads the flag once more
		if atomic.LoadUint64(asleep) != 0 && atomic.CompareAndSwapUint64(asleep, 1, 0) {
			p.r.g.e.WakePeer(s.ranks[rank])
		}
	}
}

// AwaitReady returns when a member's share of the fragment can be read.
func (p Fragment) AwaitReady(ctx context.Context, rank int) error {
	return p.awaitAgreed(ctx, rank, readyOffset)
}

// AwaitDone returns when a member is done with the fragment.
func (p Fragment) AwaitDone(ctx context.Context, rank int) error { return p.awaitAgreed(ctx, rank, 0) }

// fingerprint returns the fingerprint of the fragment's operation and of all operations before it,
// because an operation that moves nothing has no fragment.
func (p Fragment) fingerprint() uint64 {
	return p.r.fingerprint ^ (p.r.historyHash+uint64(uint32(p.r.tag)))*0x9e3779b97f4a7c15
}

// awaitAgreed awaits the fragment's number in a member's flag and compares fingerprints: that
// member may be in another operation.
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
		return nil // its cell may have been used again, because this rank is further; the fingerprint covers it, too
	}
	return p.compareFingerprints(rank, p.n-1)
}

// flagEventKind returns ready for the ready flag's offset, and done otherwise.
func flagEventKind(at int, ready, done TraceKind) TraceKind {
	if at == readyOffset {
		return ready
	}
	return done
}

// compareFingerprints compares the fingerprints of an earlier fragment. A root that only sends
// would not notice otherwise that another rank believes to be the root.
func (p Fragment) compareFingerprints(rank int, fragment uint64) error {
	s := p.r.sub.shared
	if fragment >= firstFragment && atomic.LoadUint64(p.flag(rank, fragment, fingerprintOffset)) != atomic.LoadUint64(p.flag(s.rank, fragment, fingerprintOffset)) {
		return p.mismatch(rank)
	}
	return nil
}

// mismatch fails the round: a member is in another operation.
func (p Fragment) mismatch(rank int) error {
	g := p.r.g
	return p.r.fail(&fault.Error{Kind: fault.Mismatch, Op: "collective", Rank: g.ranks[g.rank], Peers: []fault.Peer{{Rank: p.r.sub.shared.ranks[rank]}}})
}
