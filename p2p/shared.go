package p2p

import (
	"context"
	"sync/atomic"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/cpu"
	"github.com/tutti-go/tutti/internal/race"
	"github.com/tutti-go/tutti/tensor"
)

// Shared memory consists of four areas: the control blocks of all ranks, then the cells, the flag
// sets and the slots of all ranks. Words that one rank writes while other ranks poll them lie in
// separate cache lines. Offsets are in bytes:
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
// Small fragment i uses cell i mod cells. Any other fragment i uses flag set i mod flagSets and
// slot i mod slots. A fragment that is smaller than the slot uses a part of the slot. Successive
// fragments in one slot use different parts.
const (
	controlSize = 64
	coreOffset  = 8

	flagSetSize       = 64
	readyOffset       = 8
	fingerprintOffset = 16
	inlineOffset      = 24
	cellSize          = (inlineOffset + SmallSize + 63) / 64 * 64

	// cells is the number of cells per rank. A rank may write its share of a small fragment when
	// other ranks are up to firstBehind fragments behind, so this number of cells is needed. The
	// cells must also stay in the first-level cache.
	cells = 4

	// SmallSize is the maximum number of bytes of a small fragment.
	SmallSize = 4 << 10
	// SlotSize is the maximum number of bytes of a fragment. Many fragments of this size fit into
	// the second-level cache.
	SlotSize = 64 << 10

	// totalSlots is the approximate number of slots of all ranks together; two ranks have maxSlots
	// each. Writing to a cache line that is still in its readers' caches takes several times as
	// long as writing to it after those caches have evicted it. So all slots together are larger
	// than the second-level caches and smaller than the third-level cache: see docs/adr/0018.
	totalSlots = 64
	maxSlots   = 32
	minSlots   = 3
)

// A slotLayout holds the numbers of slots and flag sets of each rank, and the limits on how far
// ranks may be apart. It depends only on the number of ranks, so all ranks compute the same layout.
//
// A rank writes its share of fragment i when all members are done with fragment i-maxBehind. The
// members then do not read fragments before i-maxBehind-lead = i-slots+1 any more, so the slot of
// fragment i-slots is free. No rank is more than maxBehind fragments ahead of another rank. A rank
// reads the flags of fragments that are at most maxBehind fragments old. So twice as many flag sets
// as slots are enough.
type slotLayout struct {
	slots, flagSets int    // flagSets is a power of two
	lead, maxBehind uint64 // fragments
}

// newSlotLayout returns the layout for n ranks. Each rank has at least three slots, so it can write
// fragment i+1 while others still read fragment i-1.
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

// slotsOffset returns the number of bytes per rank in the areas before the slots.
func (l slotLayout) slotsOffset() int { return controlSize + cells*cellSize + l.flagSets*flagSetSize }

// SharedSize returns the number of bytes of shared memory that n ranks need: at most 5 MiB for 2 to
// 16 ranks. The system allocates only the pages that the ranks write to.
func SharedSize(n int) int {
	l := newSlotLayout(n)
	return n * (l.slotsOffset() + l.slots*SlotSize)
}

// Shared is one rank's view of the memory that all members of a group, or its members on one host,
// share. Only the goroutine in a blocking collective uses it, one fragment after the other. All
// members give the same numbers to the fragments, because an algorithm uses the same number of
// fragments on all members.
//
// A fragment has up to two stages, each with a flag per rank:
//
//	flag   set by      promises
//	ready  SetReady    the rank's share is in memory
//	done   SetDone     the result of the second stage is in memory; for a fragment of one
//	                   stage, the share is in memory. The rank reads no fragment any more
//	                   that is more than MaxLead fragments older
//
// A flag holds the number of a fragment and only grows. Its owner stores the data and then the
// flag. A reader loads the flag and then the data. slotLayout explains why no data is overwritten
// while it may still be read.
type Shared struct {
	slotLayout
	ranks []int // the job rank of each member
	rank  int   // this process's index in ranks

	// mem is the shared memory. words is the same memory as a slice of words, for atomic access to
	// flags. sleep holds a pointer to the asleep word of each rank.
	mem   []byte
	words []uint64
	sleep []*uint64

	// next is the number of the next fragment. The field first is the number of the current
	// operation's first fragment.
	next  uint64
	first uint64

	// slotBytes is the number of bytes of a slot that each fragment of the current operation uses.
	slotBytes int

	// history describes the last fragments before the next operation. prevHistory describes the
	// last fragments before the current operation.
	history     smallHistory
	prevHistory smallHistory

	// mapped says that the memory is not from the Go heap. The race detector then does not see the
	// order that the flags establish, so the code must report this order to it.
	mapped bool

	// flagHook is nil in programs; see SetFlagHook.
	flagHook func(set func())
}

// firstFragment is the number of the first fragment. Every rank counts as done with the two
// preceding numbers.
const firstFragment = 2

// SetShared gives the group zeroed shared memory of SharedSize bytes, which all members have
// mapped. Either all members call SetShared or none, before the group's first round.
func (g *Group) SetShared(mem []byte) { g.all.shared = newShared(g.all, mem) }

// SetHostShared is like SetShared for the members on this rank's host. Either all of these members
// call it or none.
func (g *Group) SetHostShared(mem []byte) { g.host.shared = newShared(g.host, mem) }

// SetFlagHook registers hook, which is called instead of setting a flag in the memory of SetShared.
// The hook sets the flag by a call of its argument. Tests use it to make a rank fail before or
// after it sets a flag.
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

// HasShared reports whether the round's ranks have shared memory that the round may use.
func (r *Round) HasShared() bool { return r.sub.shared != nil }

// asleep returns the word that a rank sets to 1 while it waits to be woken.
func (s *Shared) asleep(rank int) *uint64 { return &s.words[rank*controlSize/8] }

// core returns the word that holds the core on which a rank last polled, plus one.
func (s *Shared) core(rank int) *uint64 { return &s.words[(rank*controlSize+coreOffset)/8] }

// flag returns a word in a rank's flag set for a fragment. at is the word's offset in the flag set.
func (s *Shared) flag(rank int, fragment uint64, small bool, at int) *uint64 {
	n := len(s.ranks)
	if small {
		at += n*controlSize + (rank*cells+int(fragment%cells))*cellSize
	} else {
		at += n*(controlSize+cells*cellSize) + (rank*s.flagSets+int(fragment)&(s.flagSets-1))*flagSetSize
	}
	return &s.words[at/8]
}

// A smallHistory records which of the last firstBehind fragments before an operation were small.
// The flags of small fragments are in cells.
type smallHistory [firstBehind]bool

// firstBehind is the number of fragments that other ranks may be behind when a rank writes its
// share of an operation's first fragment, or of any small fragment. It is less than maxBehind,
// which applies to the other fragments. Therefore a rank that only sends reads the flags of the
// other ranks early, and learns whether these ranks are in another operation.
const firstBehind = 2

// A Fragment is one step of a collective in shared memory. It holds a share of at most SlotSize
// bytes from each rank. A rank uses it in this order; a rank that writes no share omits the calls
// that it does not need:
//
//	AwaitFree → write Slot(own rank) → SetReady → AwaitReady(others) → read → SetDone
//
// A fragment of one stage has no ready flag: SetDone publishes the share, and AwaitDone waits for
// it.
type Fragment struct {
	r     *Round
	n     uint64 // the fragment's number
	small bool   // the flags and the share are in a cell
}

// Fragments begins an operation's n fragments of at most size bytes and returns the first. The
// fragments must be used in order, and earlier fragments must not be used any more. Every member
// calls Fragments with the same arguments.
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

// flag returns a word in a rank's flag set for a fragment. The fragment must belong to p's
// operation, or be one of the firstBehind fragments before the operation.
func (p Fragment) flag(rank int, fragment uint64, at int) *uint64 {
	s, small := p.r.sub.shared, p.small
	if fragment < s.first {
		small = s.prevHistory[(s.first-fragment-1)%firstBehind]
	}
	return s.flag(rank, fragment, small, at)
}

// MaxLead applies to operations whose fragments have one stage. It returns the maximum number of
// fragments by which a rank's done flag may be ahead of the fragment that the rank is reading.
func (r *Round) MaxLead() int { return int(r.sub.shared.lead) }

// Slot returns the memory of a member's share of the fragment. It has room for the size that was
// passed to Fragments, up to SlotSize. A rank writes only its own share, between AwaitFree and
// SetReady.
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
// rank will write, and the lines with the flags that AwaitFree reads. A prefetch takes about as
// long as the checks at the beginning of a call, so the two overlap.
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

// maxPrefetchRanks is the maximum number of ranks for which the other ranks' lines are prefetched.
const maxPrefetchRanks = 8

// AwaitFree waits until this rank may write its share. A rank that writes no share must also call
// AwaitFree if it calls SetDone before it has waited for another rank, because other ranks may
// still read the flags and the share in its cell.
func (p Fragment) AwaitFree(ctx context.Context) error {
	s, last := p.r.sub.shared, p.n-firstBehind
	if !p.small && p.n > s.first {
		last = p.n - min(p.n, s.maxBehind)
		if last <= s.first-firstBehind {
			return nil // the call for the operation's first fragment has already waited
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

// SetDone publishes that this rank has finished the fragment's second stage. For a fragment of one
// stage it publishes this rank's share.
func (p Fragment) SetDone() { p.publish(0) }

// publish writes the operation's fingerprint to the fragment's flag set, and then sets the flag at
// the given offset.
func (p Fragment) publish(at int) {
	s := p.r.sub.shared
	// Both flags of a fragment share one fingerprint, so the fingerprint may have been stored
	// already. A second store would invalidate the line in the caches of the ranks that poll it.
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

// set sets this rank's flag and wakes the ranks that are asleep. For the first fragment of an
// operation, if it is not small, set also sets the flag in the fragment's cell. A rank that is in
// an operation of small fragments by mistake polls the cell, and so detects the mismatch.
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
	// This must follow the store of the flag, because a rank that falls asleep reads the flag once
	// more.
	for rank, asleep := range s.sleep {
		if atomic.LoadUint64(asleep) != 0 && atomic.CompareAndSwapUint64(asleep, 1, 0) {
			p.r.g.e.WakePeer(s.ranks[rank])
		}
	}
}

// AwaitReady waits until a member's share of the fragment can be read.
func (p Fragment) AwaitReady(ctx context.Context, rank int) error {
	return p.awaitAgreed(ctx, rank, readyOffset)
}

// AwaitDone waits until a member is done with the fragment.
func (p Fragment) AwaitDone(ctx context.Context, rank int) error { return p.awaitAgreed(ctx, rank, 0) }

// fingerprint returns a fingerprint of the fragment's operation and of all operations before it. It
// includes the earlier operations, because an operation that moves no data has no fragment and no
// other fingerprint.
func (p Fragment) fingerprint() uint64 {
	return p.r.fingerprint ^ (p.r.historyHash+uint64(uint32(p.r.tag)))*0x9e3779b97f4a7c15
}

// awaitAgreed waits until a member's flag has reached the fragment's number. It then compares
// fingerprints, because the member may be in another operation.
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
		// The member may have reused the previous fragment's cell. The fingerprint of p also covers
		// that operation.
		return nil
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

// compareFingerprints compares a member's fingerprint of an earlier fragment with this rank's
// fingerprint. Without this check, a root that only sends would not detect that another rank also
// acts as the root.
func (p Fragment) compareFingerprints(rank int, fragment uint64) error {
	s := p.r.sub.shared
	if fragment >= firstFragment && atomic.LoadUint64(p.flag(rank, fragment, fingerprintOffset)) != atomic.LoadUint64(p.flag(s.rank, fragment, fingerprintOffset)) {
		return p.mismatch(rank)
	}
	return nil
}

// mismatch fails the round with the error that a member is in another operation.
func (p Fragment) mismatch(rank int) error {
	g := p.r.g
	return p.r.fail(&fault.Error{Kind: fault.Mismatch, Op: "collective", Rank: g.ranks[g.rank], Peers: []fault.Peer{{Rank: p.r.sub.shared.ranks[rank]}}})
}
