package negotiate

import (
	"fmt"
	"slices"

	"github.com/tutti-go/tutti/fault"
)

// Time is nanoseconds on a clock that never runs backwards; Span is a distance.
type (
	Time     int64
	Duration int64
)

// Spans.
const (
	Microsecond Duration = 1000
	Millisecond          = 1000 * Microsecond
	Second               = 1000 * Millisecond
)

// A Config is what Leader and Members go by. It is equal on all ranks.
type Config struct {
	Size int // ranks
	// Cycle is how long the first submission of a Member, and the first ready
	// tensor of the leader, wait for company.
	Cycle          Duration
	Fusion         int // bytes of a Bucket of several tensors, at most
	MaxFusedTensor int // tensors above this many bytes are not fused
	Partition      int // bytes of a part of a large tensor
	// Credit is about how many bytes are launched and not carried out by rank 0.
	// Unranked is the same while no tensor has had a priority, where it is more.
	Credit              int
	UnprioritizedCredit int
	Cache               int // tensors that have numbers; 0: no cache
	StallWarn           Duration
	StallEnd            Duration
}

// A Coordinator decides for all ranks; it runs on rank 0. It is used by one goroutine
// at a time. Outputs, and what they point to, may be kept.
type Coordinator struct {
	cfg Config
	now Time
	seq uint32

	sets    map[uint32]*processSet
	nextSet uint32

	pending      map[key]*pendingTensor // submitted by somebody, and not launched or failed; but for those of slots
	pendingCount int                    // how many there are, with those
	groups       map[groupKey]*group
	pendingPool  []*pendingTensor // for reuse
	lastRequest  *pendingTensor   // what the message has submitted in full so far; at first, start
	noRequest    pendingTensor

	cache             []coordinatorEntry
	fast              cachedPath // what is counted of them
	cacheIDs          map[key]uint32
	freeIDs           []uint32
	evicting          []uint32 // over, and not yet known to be so everywhere
	transientCount    uint32   // numbers beyond the cache that are taken
	freeTransient     []uint32 // and those that are free again
	releasedTransient []uint32 // and those that will be, after the next message
	launches          uint64   // counts launches, for the age of slots
	lastAck           []uint32

	ready          []*readyTensor
	readyPool      []*readyTensor // for reuse
	building       bucketBuilders
	idPool         []IDRange // memory for the next Buckets' numbers
	readySince     Time      // when the first of queue came
	readyBytes     int       // in queue
	inflight       int
	creditSpent    bool // the credit was spent; half of it must come back
	prioritized    bool // there has been a tensor with a priority, so some may overtake others
	force          bool // launch all that is ready, whatever it costs
	skipFusionWait bool // launch without waiting for company

	joined     Bitset
	lastJoined int // the rank that joined last
	shutdown   Bitset
	ended      bool

	cacheOff bool // tensors get no number that is remembered

	nextStallCheck Time             // when the first tensor may have waited too long
	reporting      []*pendingTensor // the report that waits for answers
	locating       Bitset
	locations      []RankLocation
	locateDeadline Time

	outgoing ResponseList
	outputs  []CoordinatorOutput
	nextStep Time // when to look again; never: no need
}

// A coordinatorEntry is a number of the cache.
type coordinatorEntry struct {
	spec      *Spec
	rows      []int
	site      string
	lastUsed  uint64 // by the Leader's count
	state     entryState
	queued    bool   // queued
	evictedAt uint32 // the Down that ended it
	pending   *pendingTensor
	ready     *readyTensor // to be queued again and again; nil before the first time
}

type entryState uint8

const (
	entryFree entryState = iota
	entryLive
	entryEvicted // still understood, until all have acknowledged
)

// An CoordinatorOutput is something to be done.
type CoordinatorOutput interface{ fmt.Stringer }

type (
	// SendResponses is for all Members, this rank's too.
	SendResponses struct{ List *ResponseList }
	// Warn reports tensors that wait for ranks.
	Warn struct{ Stalls []Stall }
)

// A CoordinatorInput is something that happened.
type CoordinatorInput interface{ apply(l *Coordinator) }

// The inputs of a Leader.
type (
	// Tick says only that time has passed.
	Tick struct{}
	// RequestsReceived brings a Member's message. Nothing in it changes any more.
	RequestsReceived struct {
		From int
		List *RequestList
	}
	// Executed says that rank 0 has carried out Buckets of so many bytes, by Cost.
	Executed struct{ Cost int }
)

// NewCoordinator makes a Leader that has heard nothing.
func NewCoordinator(cfg Config) *Coordinator {
	c := &Coordinator{
		cfg: cfg, sets: make(map[uint32]*processSet), nextSet: 1,
		pending: make(map[key]*pendingTensor), groups: make(map[groupKey]*group),
		cacheIDs: make(map[key]uint32), lastAck: make([]uint32, cfg.Size), nextStallCheck: never,
		fast: cachedPath{submitted: make([]Bitset, cfg.Size)},
	}
	c.sets[World] = newSet(allRanks(cfg.Size))
	c.sets[SetRegistry] = c.sets[World]
	return c
}

// Step tells the Leader what happened, and when. The slice is valid until the
// next Step.
func (c *Coordinator) Step(now Time, in CoordinatorInput) []CoordinatorOutput {
	c.outputs = c.outputs[:0]
	c.now = max(c.now, now)
	c.nextStep = never
	if c.ended {
		return nil
	}
	in.apply(c)
	c.checkStalls()
	c.launch()
	c.checkShutdown()
	c.flush()
	return c.outputs
}

// Next is how long the Leader can wait for its next Step when nothing else
// happens; ok is false when it can wait for ever.
func (c *Coordinator) Next() (wait Duration, ok bool) {
	if c.nextStep == never || c.ended {
		return 0, false
	}
	return Duration(max(0, c.nextStep-c.now)), true
}

const never = Time(1<<63 - 1)

// due reports whether t has come, and has the Leader look again at t if not.
func (c *Coordinator) due(t Time) bool {
	if t <= c.now {
		return true
	}
	c.nextStep = min(c.nextStep, t)
	return false
}

func (Tick) apply(*Coordinator) {}

func (in Executed) apply(c *Coordinator) { c.inflight = max(0, c.inflight-in.Cost) }

func (in RequestsReceived) apply(c *Coordinator) {
	m := in.List
	if in.From < 0 || in.From >= c.cfg.Size || m.Ack > c.seq {
		c.protocolError(in.From, "acknowledged response list %d; the last one is %d", m.Ack, c.seq)
		return
	}
	if m.Fault != nil {
		c.abort(m.Fault)
		return
	}
	c.lastAck[in.From] = max(c.lastAck[in.From], m.Ack)
	c.receiveCached(in.From, m.Cached)
	c.lastRequest = &c.noRequest
	for i := range m.Requests {
		c.receiveRequest(in.From, &m.Requests[i])
	}
	if m.HasLocation {
		c.receiveLocation(in.From, m.Location)
	}
	if m.Join {
		c.join(in.From)
	}
	if m.Shutdown {
		c.receiveShutdown(in.From)
	}
}

// protocolError ends the coordinator: a Member says what none says.
func (c *Coordinator) protocolError(rank int, format string, args ...any) {
	c.abort(&fault.Error{Kind: fault.Mismatch, Op: "coordinator", Rank: 0, Peers: []fault.Peer{{Rank: rank}}, Err: fmt.Errorf("rank %d "+format, append([]any{rank}, args...)...)})
}

// abort ends the coordinator on all ranks. The first cause stays.
func (c *Coordinator) abort(err *fault.Error) {
	if c.ended {
		return
	}
	c.outgoing.Responses = append(c.outgoing.Responses, Response{Kind: ResponseAbort, Err: err})
	c.ended = true
}

// checkShutdown ends the coordinator when all ranks have left and nothing is to be done.
func (c *Coordinator) checkShutdown() {
	if !c.ended && c.shutdown.Count() == c.cfg.Size && len(c.ready) == 0 && c.pendingCount == 0 {
		c.outgoing.Responses = append(c.outgoing.Responses, Response{Kind: ResponseShutdown})
		c.ended = true
	}
}

// flush tells what was decided, in messages of a bounded number of meanings.
func (c *Coordinator) flush() {
	d := c.outgoing
	c.outgoing = ResponseList{}
	c.freeTransient, c.releasedTransient = append(c.freeTransient, c.releasedTransient...), c.releasedTransient[:0]
	for len(d.Entries)+len(d.Responses)+len(d.Evicted) > 0 {
		part := d
		if len(d.Entries) > maxEntries { // they come before the items that use them
			part = ResponseList{Entries: d.Entries[:maxEntries]}
			d.Entries = d.Entries[maxEntries:]
		} else {
			d = ResponseList{}
		}
		c.seq++
		part.Seq = c.seq
		c.outputs = append(c.outputs, SendResponses{&part})
	}
	c.freeEvicted()
}

// maxEntries in one Down keep it to some 100 KiB with names of ordinary length.
const maxEntries = 512

// A processSet is a process set: some ranks of the job, in order.
type processSet struct {
	ranks []int
	index map[int]int // nil for all ranks, each at its own place
}

func allRanks(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

func newSet(ranks []int) *processSet {
	s := &processSet{ranks: ranks}
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

// indexOf is a rank's place in the set, or -1.
func (s *processSet) indexOf(rank int) int {
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
