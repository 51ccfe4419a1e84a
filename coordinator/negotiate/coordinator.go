package negotiate

import (
	"fmt"
	"slices"

	"github.com/tutti-go/tutti/fault"
)

// Time is a time in nanoseconds on a monotonic clock. Duration is the difference of two Times. This
// package defines both types because it must not read a clock.
type (
	Time     int64
	Duration int64
)

// Durations.
const (
	Microsecond Duration = 1000
	Millisecond          = 1000 * Microsecond
	Second               = 1000 * Millisecond
)

// A Config configures the negotiation. All ranks use an equal Config. Sizes are in bytes. They are
// computed with the element types of the tensors, not with the types on the wire.
type Config struct {
	Size int // number of ranks
	// Cycle is the time for which a Worker's first submission waits for further submissions that
	// can be sent with it. It is also the time for which the Coordinator's first ready tensor waits
	// for tensors that can be fused with it.
	Cycle Duration
	// Fusion bounds the total size of the tensors in a Bucket with several tensors. A tensor above
	// MaxFusedTensor is alone in its Bucket. A tensor above Partition runs in parts of about
	// Partition bytes.
	Fusion         int
	MaxFusedTensor int // tensors above this many bytes are not fused
	Partition      int // bytes of a part of a large tensor
	// Credit is the approximate number of bytes that may be launched and not yet executed by rank
	// 0. An urgent tensor waits for at most this number of bytes. If UnprioritizedCredit is larger,
	// it applies until the first tensor with a priority. Until then no tensor can overtake another
	// tensor, and a small credit would only make ranks wait for orders.
	Credit              int
	UnprioritizedCredit int
	// Cache is the number of entries of the response cache; 0 turns it off.
	Cache int
	// A tensor that some ranks have not submitted is reported after StallWarn. It ends the
	// coordinator after StallEnd. A limit of 0 does not apply.
	StallWarn Duration
	StallEnd  Duration
}

// A Coordinator is the state machine that decides for all ranks. It runs on rank 0. Only one
// goroutine at a time may use it. The caller may keep outputs and the values that they point to.
//
// A tensor passes through these states. Each leads to the next or to a failure:
//
//	state      where                    until
//	submitted  pending, or the entry's  every rank of the set has submitted it or has joined;
//	           pending, or fast.counts  then resolve
//	grouped    groups                   all tensors of its group are resolved
//	ready      ready                    launch orders its last part: the wait for fusion is over,
//	                                    and there is credit
//	launched   counted in inflight      Executed returns its cost
type Coordinator struct {
	cfg Config
	now Time
	seq uint32

	// sets maps numbers to process sets. A number is never reused, so a request for a removed set
	// cannot reach another set.
	sets    map[uint32]*processSet
	nextSet uint32

	// pending maps names to the pending tensors without a cache entry. Entries refer to their own
	// pending tensors.
	pending map[key]*pendingTensor
	// pendingCount is a sum: the tensors in pending, the pending tensors of entries, and the
	// tensors that are counted on the cached path. While it is above 0, ready tensors wait to be
	// fused.
	pendingCount int
	groups       map[groupKey]*group
	// conflicts holds the submissions of the current list that cannot wait for other ranks; see
	// checkGroup.
	conflicts []groupConflict
	failures  permanentFailures
	// refused holds, by tensor, the calls that at least one rank has refused and other ranks have
	// not made yet. late holds the submissions that belong to such calls, from the list that is
	// being read. failLate fails them.
	refused      map[key]*refusedCalls
	refusedCount int
	late         []lateSubmission
	// parts holds, by rank, the lists whose submissions continue in the next list; see
	// RequestList.More. Its size is bounded by the number of submissions that a rank's program has in
	// flight.
	parts       map[int][]*RequestList
	pendingPool []*pendingTensor // structs to be used again
	// lastRequest is the previous request of the list being handled. Its field next predicts the
	// next request, because most ranks submit in the same order.
	lastRequest *pendingTensor
	noRequest   pendingTensor // the value of lastRequest before the first request

	// The response cache. IDs from cfg.Cache on are transient: for one launch, not cached.
	cache             []coordinatorEntry
	fast              cachedPath
	cacheIDs          map[key]uint32 // live entries by name
	freeIDs           []uint32       // entries that are free
	evicting          []uint32       // entries that are evicted
	transientCount    uint32         // number of transient IDs
	freeTransient     []uint32       // the free transient IDs
	releasedTransient []uint32       // the transient IDs that become free after the next list
	launches          uint64         // counts launches; the clock of lastUsed
	lastAck           []uint32       // by rank: the number of the last list that the rank has applied

	// ready holds the ready tensors. launch sorts them by priority and ID. The reasons to launch
	// them now:
	//
	//	readyBytes reaches Config.Fusion    the Bucket would not become fuller
	//	readySince + Config.Cycle is over   waiting longer costs more than fusion saves
	//	pendingCount is 0                   no tensor can be fused with them soon
	//	skipFusionWait                      a barrier is ready
	//	force                               a fence: later responses must not overtake them
	//
	// When inflight reaches the credit, launch stops, unless force is set.
	ready      []*readyTensor
	readyPool  []*readyTensor // structs to be used again
	building   bucketBuilders
	idPool     []IDRange // spare memory for the IDs of responses
	readySince Time      // when the first tensor of ready became ready
	readyBytes int       // bytes of all tensors in ready
	// inflight is the cost of the parts that are launched and not yet executed by rank 0.
	inflight int
	// creditSpent is set when a launch stops for lack of credit. It is cleared when half of the
	// credit has been returned.
	creditSpent    bool
	prioritized    bool // a tensor with a priority has been submitted
	force          bool // launch all ready tensors, even beyond the credit
	skipFusionWait bool // launch without waiting to fuse

	// joined holds the ranks that have run out of data. shutdown holds the ranks that submit
	// nothing more:
	//
	//	a rank is   its submissions  a tensor that it has not submitted
	//	in neither  count            waits for it
	//	joined      protocol error   is resolved without it; it is absent
	//	shutdown    protocol error   fails with fault.Closed
	//	in both     protocol error   is resolved without it, until all ranks have joined
	joined     Bitset
	lastJoined int
	shutdown   Bitset
	ended      bool

	cacheOff bool // all IDs are transient

	// nextStallCheck is the earliest time at which the oldest pending tensor may have stalled.
	nextStallCheck Time
	reporting      []*pendingTensor // the tensors of the current report
	// locating holds the ranks that were asked for their locations and have not answered.
	locating       Bitset
	locations      []RankLocation
	locateDeadline Time // when the stall report is made even if answers are missing

	// These are the output of the current Step.
	outgoing ResponseList
	outputs  []CoordinatorOutput
	nextStep Time // what Next returns; never: no Step needed
}

// A coordinatorEntry is an entry of the response cache. Its index is the cache ID, which ranks use
// in their messages. The Coordinator and the sender of a bit must always agree on the meaning of an
// ID, although messages are in flight in both directions. Therefore an entry is first evicted, and
// freed later. While the entry is evicted, the Coordinator still understands bits with the old
// meaning. The ID is given to another tensor only after every Worker has acknowledged the eviction.
//
//	state    bits of this ID           leaves by
//	free     protocol error            assignID: live
//	live     submit spec               evict, which tells the Workers: evicted
//	evicted  submit spec, sent before  freeEvicted, once all have acknowledged evictedAt: free
//	         the eviction was known
type coordinatorEntry struct {
	spec      *Spec
	rows      []int
	site      string
	lastUsed  uint64 // the value of Coordinator.launches at the last use
	state     entryState
	queued    bool   // the tensor is in Coordinator.ready
	evictedAt uint32 // the number of the list with the eviction
	pending   *pendingTensor
	// ready is created when the cached path first launches the entry. Later launches use it again.
	ready *readyTensor
}

// An entryState is a row of coordinatorEntry's table.
type entryState uint8

const (
	entryFree entryState = iota
	entryLive
	entryEvicted
)

// A CoordinatorOutput is an action for rank 0. String shows it in transcripts.
type CoordinatorOutput interface{ fmt.Stringer }

type (
	// SendResponses sends a list to all Workers, including the Worker of rank 0. Every Worker gets
	// all lists in order.
	SendResponses struct{ List *ResponseList }
	// Warn is a report for the log, about tensors that wait for ranks.
	Warn struct{ Stalls []Stall }
)

// A CoordinatorInput is an event for the Coordinator.
type CoordinatorInput interface{ apply(l *Coordinator) }

// These are the inputs of a Coordinator.
type (
	// Tick says only that time has passed.
	Tick struct{}
	// RequestsReceived has a Worker's list. The Coordinator keeps parts of the list, so the caller
	// must not change it.
	RequestsReceived struct {
		From int
		List *RequestList
	}
	// Executed gives back the credit of a Bucket that rank 0 has executed. Cost is the Bucket's
	// Cost.
	Executed struct{ Cost int }
)

// NewCoordinator makes a Coordinator. Initially it has no tensors, and the set of all ranks is its
// only set.
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

// Step applies one input and returns the outputs in order. The slice is valid until the next Step.
// If the parameter now is earlier than the time of the previous Step, Step uses the time of the
// previous Step. After the coordinator has ended, Step returns nil.
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

// Next returns how long the Coordinator can wait for its next Step if no event comes. ok is false
// if no Step is needed.
func (c *Coordinator) Next() (wait Duration, ok bool) {
	if c.nextStep == never || c.ended {
		return 0, false
	}
	return Duration(max(0, c.nextStep-c.now)), true
}

const never = Time(1<<63 - 1)

// due reports whether time t has come. If time t has not come yet, due ensures that Next waits
// until t at most.
func (c *Coordinator) due(t Time) bool {
	if t <= c.now {
		return true
	}
	c.nextStep = min(c.nextStep, t)
	return false
}

// apply does nothing: after every input, Step handles everything that is due.
func (Tick) apply(*Coordinator) {}

// apply returns credit. inflight could become negative only by a mistake of the caller. It is then
// set to 0.
func (in Executed) apply(c *Coordinator) { c.inflight = max(0, c.inflight-in.Cost) }

// apply handles a list in the order in which the Worker's program called: submissions first, then
// join, then shutdown, since the list may have all of them.
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
	if m.More { // a group may go on in the next list
		if c.parts == nil {
			c.parts = make(map[int][]*RequestList)
		}
		c.parts[in.From] = append(c.parts[in.From], m)
		return
	}
	if len(c.parts) > 0 {
		for _, part := range c.parts[in.From] {
			c.receiveSubmissions(in.From, part)
		}
		delete(c.parts, in.From)
	}
	c.receiveSubmissions(in.From, m)
	c.failConflicts()
	c.failLate(in.From)
	if m.Refused != nil {
		c.receiveRefusal(in.From, m.Refused)
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

// receiveSubmissions handles the submissions of a list.
func (c *Coordinator) receiveSubmissions(from int, m *RequestList) {
	c.lastAck[from] = max(c.lastAck[from], m.Ack)
	c.receiveCached(from, m.Cached)
	c.lastRequest = &c.noRequest
	for i := range m.Requests {
		c.receiveRequest(from, &m.Requests[i])
	}
}

// protocolError ends the coordinator, because a rank has sent a message that no correct Worker
// sends. The cause is a bug or another version of the program, so no message of that rank can be
// trusted.
func (c *Coordinator) protocolError(rank int, format string, args ...any) {
	c.abort(&fault.Error{Kind: fault.Mismatch, Op: "coordinator", Rank: 0, Peers: []fault.Peer{{Rank: rank}}, Err: fmt.Errorf("rank %d "+format+"; run the same version of the program on all ranks", append([]any{rank}, args...)...)})
}

// abort ends the coordinator on all ranks. Only the first call has an effect.
func (c *Coordinator) abort(err *fault.Error) {
	if c.ended {
		return
	}
	c.outgoing.Responses = append(c.outgoing.Responses, Response{Kind: ResponseAbort, Err: err})
	c.ended = true
}

// checkShutdown ends the coordinator once all ranks have shut down and no tensor is pending or
// ready.
func (c *Coordinator) checkShutdown() {
	if !c.ended && c.shutdown.Count() == c.cfg.Size && len(c.ready) == 0 && c.pendingCount == 0 {
		c.outgoing.Responses = append(c.outgoing.Responses, Response{Kind: ResponseShutdown})
		c.ended = true
	}
}

// flush sends the decisions of this Step. Entries come before the responses that use them. A list
// with too many entries is cut into several lists. Each of these lists has its own number and
// acknowledgment.
func (c *Coordinator) flush() {
	d := c.outgoing
	c.outgoing = ResponseList{}
	c.freeTransient, c.releasedTransient = append(c.freeTransient, c.releasedTransient...), c.releasedTransient[:0]
	for len(d.Entries)+len(d.Responses)+len(d.Evicted) > 0 {
		part := d
		if len(d.Entries) > maxEntries { // entries come before the responses that use them
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

// maxEntries bounds the number of entries in one list. With names of ordinary length such a list
// takes about 100 KiB.
const maxEntries = 512

// A processSet is a list of some of the job's ranks. In operations on the set, roots and parts are
// indexes into ranks.
type processSet struct {
	ranks []int
	index map[int]int // nil if each rank is its own index
}

// allRanks lists 0 to n-1.
func allRanks(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// newSet makes a set of these ranks. It keeps the slice.
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

// indexOf returns a rank's index in the set, or -1 if the rank is not a member.
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

// validRanks reports whether a list can be a process set in a job with the given number of ranks.
// The list must not be empty, and must hold each rank at most once.
func validRanks(ranks []int, size int) bool {
	if len(ranks) == 0 || len(ranks) > size {
		return false
	}
	sorted := slices.Sorted(slices.Values(ranks))
	return sorted[0] >= 0 && sorted[len(sorted)-1] < size && len(slices.Compact(sorted)) == len(ranks)
}
