package negotiate

import (
	"fmt"
	"slices"

	"github.com/tutti-go/tutti/fault"
)

// Time is nanoseconds on a clock that never runs backwards; Span is a distance.
type (
	Time int64
	Span int64
)

// Spans.
const (
	Microsecond Span = 1000
	Millisecond      = 1000 * Microsecond
	Second           = 1000 * Millisecond
)

// A Config is what Leader and Members go by. It is equal on all ranks.
type Config struct {
	Size int // ranks
	// Cycle is how long the first submission of a Member, and the first ready
	// tensor of the leader, wait for company.
	Cycle     Span
	Fusion    int // bytes of a Bucket of several tensors, at most
	Alone     int // tensors above this many bytes are not fused
	Partition int // bytes of a part of a large tensor
	// Credit is about how many bytes are launched and not carried out by rank 0.
	// Unranked is the same while no tensor has had a priority, where it is more.
	Credit    int
	Unranked  int
	Cache     int // tensors that have numbers; 0: no cache
	StallWarn Span
	StallEnd  Span
}

// A Leader decides for all ranks; it runs on rank 0. It is used by one goroutine
// at a time. Outputs, and what they point to, may be kept.
type Leader struct {
	cfg Config
	now Time
	seq uint32

	sets    map[uint32]*set
	nextSet uint32

	pending map[key]*pending // submitted by somebody, and not launched or failed; but for those of slots
	waiting int              // how many there are, with those
	groups  map[groupKey]*group
	spare   []*pending // for reuse
	before  *pending   // what the message has submitted in full so far; at first, start
	start   pending

	slots   []slot
	quick   quick // what is counted of them
	cached  map[key]uint32
	free    []uint32
	drains  []uint32 // over, and not yet known to be so everywhere
	once    uint32   // numbers beyond the cache that are taken
	onces   []uint32 // and those that are free again
	spent   []uint32 // and those that will be, after the next message
	used    uint64   // counts launches, for the age of slots
	lastAck []uint32

	queue    []*unit
	units    []*unit // for reuse
	making   buckets
	spans    []Span32 // memory for the next Buckets' numbers
	readyAt  Time     // when the first of queue came
	bytes    int      // in queue
	inflight int
	full     bool // the credit was spent; half of it must come back
	ranked   bool // there has been a tensor with a priority, so some may overtake others
	urgent   bool // launch all that is ready, whatever it costs
	hurry    bool // launch without waiting for company

	joined  Bits
	last    int // the rank that joined last
	leaving Bits
	ended   bool

	uncached bool // tensors get no number that is remembered

	stallAt Time       // when the first tensor may have waited too long
	warned  []*pending // the report that waits for answers
	asked   Bits
	places  []Place
	askEnd  Time

	down Down
	outs []Output
	next Time // when to look again; never: no need
}

// A slot is a number of the cache.
type slot struct {
	meaning *Tensor
	rows    []int
	site    string
	used    uint64 // by the Leader's count
	state   slotState
	busy    bool   // queued
	over    uint32 // the Down that ended it
	pend    *pending
	unit    *unit // to be queued again and again; nil before the first time
}

type slotState uint8

const (
	slotFree slotState = iota
	slotLive
	slotOver // still understood, until all have acknowledged
)

// An Output is something to be done.
type Output interface{ fmt.Stringer }

type (
	// Tell is for all Members, this rank's too.
	Tell struct{ Down *Down }
	// Warn reports tensors that wait for ranks.
	Warn struct{ Stalls []Stall }
)

// A LeaderInput is something that happened.
type LeaderInput interface{ apply(l *Leader) }

// The inputs of a Leader.
type (
	// Tick says only that time has passed.
	Tick struct{}
	// Told brings a Member's message. Nothing in it changes any more.
	Told struct {
		From int
		Up   *Up
	}
	// Carried says that rank 0 has carried out Buckets of so many bytes, by Cost.
	Carried struct{ Cost int }
	// Broken ends the coordinator on all ranks.
	Broken struct{ Err *fault.Error }
)

// NewLeader makes a Leader that has heard nothing.
func NewLeader(cfg Config) *Leader {
	l := &Leader{
		cfg: cfg, sets: make(map[uint32]*set), nextSet: 1,
		pending: make(map[key]*pending), groups: make(map[groupKey]*group),
		cached: make(map[key]uint32), lastAck: make([]uint32, cfg.Size), stallAt: never,
		quick: quick{said: make([]Bits, cfg.Size)},
	}
	l.sets[World] = newSet(everyone(cfg.Size))
	l.sets[Registry] = l.sets[World]
	return l
}

// Step tells the Leader what happened, and when. The slice is valid until the
// next Step.
func (l *Leader) Step(now Time, in LeaderInput) []Output {
	l.outs = l.outs[:0]
	l.now = max(l.now, now)
	l.next = never
	if l.ended {
		return nil
	}
	in.apply(l)
	l.judgeStalls()
	l.launch()
	l.checkBye()
	l.flush()
	return l.outs
}

// Next is how long the Leader can wait for its next Step when nothing else
// happens; ok is false when it can wait for ever.
func (l *Leader) Next() (wait Span, ok bool) {
	if l.next == never || l.ended {
		return 0, false
	}
	return Span(max(0, l.next-l.now)), true
}

const never = Time(1<<63 - 1)

// due reports whether t has come, and has the Leader look again at t if not.
func (l *Leader) due(t Time) bool {
	if t <= l.now {
		return true
	}
	l.next = min(l.next, t)
	return false
}

func (Tick) apply(*Leader) {}

func (in Carried) apply(l *Leader) { l.inflight = max(0, l.inflight-in.Cost) }

func (in Broken) apply(l *Leader) { l.abort(in.Err) }

func (in Told) apply(l *Leader) {
	m := in.Up
	if in.From < 0 || in.From >= l.cfg.Size || m.Ack > l.seq {
		l.liar(in.From, "acknowledges message %d of %d", m.Ack, l.seq)
		return
	}
	if m.Fault != nil {
		l.abort(m.Fault)
		return
	}
	l.lastAck[in.From] = max(l.lastAck[in.From], m.Ack)
	l.hearBits(in.From, m.Cached)
	l.before = &l.start
	for i := range m.Requests {
		l.hearRequest(in.From, &m.Requests[i])
	}
	if m.IsHere {
		l.hearPlace(in.From, m.Here)
	}
	if m.Join {
		l.join(in.From)
	}
	if m.Leave {
		l.leave(in.From)
	}
}

// liar ends the coordinator: a Member says what none says.
func (l *Leader) liar(rank int, format string, args ...any) {
	l.abort(&fault.Error{Kind: fault.Mismatch, Op: "coordinator", Rank: 0, Peers: []fault.Peer{{Rank: rank}}, Err: fmt.Errorf("rank %d "+format, append([]any{rank}, args...)...)})
}

// abort ends the coordinator on all ranks. The first cause stays.
func (l *Leader) abort(err *fault.Error) {
	if l.ended {
		return
	}
	l.down.Items = append(l.down.Items, Item{Kind: ItemAbort, Err: err})
	l.ended = true
}

// checkBye ends the coordinator when all ranks have left and nothing is to be done.
func (l *Leader) checkBye() {
	if !l.ended && l.leaving.Count() == l.cfg.Size && len(l.queue) == 0 && l.waiting == 0 {
		l.down.Items = append(l.down.Items, Item{Kind: ItemBye})
		l.ended = true
	}
}

// flush tells what was decided, in messages of a bounded number of meanings.
func (l *Leader) flush() {
	d := l.down
	l.down = Down{}
	l.onces, l.spent = append(l.onces, l.spent...), l.spent[:0]
	for len(d.Meanings)+len(d.Items)+len(d.Over) > 0 {
		part := d
		if len(d.Meanings) > maxMeanings { // they come before the items that use them
			part = Down{Meanings: d.Meanings[:maxMeanings]}
			d.Meanings = d.Meanings[maxMeanings:]
		} else {
			d = Down{}
		}
		l.seq++
		part.Seq = l.seq
		l.outs = append(l.outs, Tell{&part})
	}
	l.drain()
}

// maxMeanings in one Down keep it to some 100 KiB with names of ordinary length.
const maxMeanings = 512

// A set is a process set: some ranks of the job, in order.
type set struct {
	ranks []int
	index map[int]int // nil for all ranks, each at its own place
}

func everyone(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

func newSet(ranks []int) *set {
	s := &set{ranks: ranks}
	for i, r := range ranks {
		if i != r {
			s.index = make(map[int]int, len(ranks))
		}
	}
	if s.index != nil || len(ranks) == 0 {
		s.index = make(map[int]int, len(ranks))
		for i, r := range ranks {
			s.index[r] = i
		}
	}
	return s
}

// at is a rank's place in the set, or -1.
func (s *set) at(rank int) int {
	if s.index == nil {
		if rank < len(s.ranks) {
			return rank
		}
		return -1
	}
	if i, in := s.index[rank]; in {
		return i
	}
	return -1
}

// validRanks reports whether a list could be a process set of size ranks.
func validRanks(ranks []int, size int) bool {
	if len(ranks) == 0 || len(ranks) > size {
		return false
	}
	sorted := slices.Sorted(slices.Values(ranks))
	return sorted[0] >= 0 && sorted[len(sorted)-1] < size && len(slices.Compact(sorted)) == len(ranks)
}
