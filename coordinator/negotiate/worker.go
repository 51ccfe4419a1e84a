package negotiate

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tutti-go/tutti/fault"
)

// A Worker is one rank's side. It is used by one goroutine at a time.
type Worker struct {
	cfg  Config
	rank int
	now  Time

	tensors   map[key]*tensorState
	cache     []workerEntry           // by number, of the cache
	transient map[uint32]*workerEntry // numbers beyond it
	sets      map[uint32]*processSet

	outgoing      RequestList // what has not been sent
	hasOutgoing   bool
	outgoingSince Time // when its first part came
	urgent        bool
	applied       uint32

	// A step of the program's is what is submitted until a name comes again. The
	// last one's size tells when this one is complete.
	step                    uint64
	stepCount, stepExpected int

	joining, closed bool
	joinSubmission  SubmissionID
	removing        map[uint32]bool // sets whose removal was submitted
	ended           bool

	outputs         []WorkerOutput
	bucketPool      []Bucket        // memory for the next ones,
	entryPool       []BucketEntry   // and for their Refs,
	releasedEntries [][]BucketEntry // also of Buckets of many tensors that nobody needs any more
}

// A SubmissionID is the runtime's number of a submission; 0 is none.
type SubmissionID uint64

// A tensorState is what is known of a key while it is submitted or cached.
type tensorState struct {
	key          key
	submission   SubmissionID // of the submission under way
	request      TensorRequest
	cacheID      int  // its number in the cache; -1: none
	matchesCache bool // request is what the number means
	unsent       bool // the submission lies in up
	step         uint64
	removed      bool // not in Member.names any more
}

// An workerEntry is what a number means.
type workerEntry struct {
	spec  *Spec // nil: nothing
	rows  []int
	state *tensorState // nil when this rank knows none
	set   uint32
	cost  int // of the whole
}

// A WorkerOutput is something to be done.
type WorkerOutput interface{ fmt.Stringer }

type (
	// SendRequests goes to the leader. It is the caller's.
	SendRequests struct{ List *RequestList }
	// Run is carried out after all earlier ones.
	Run struct{ Bucket *Bucket }
	// Fail ends submissions.
	Fail struct {
		Submissions []SubmissionID
		Err         *fault.Error
	}
	// JoinDone ends a join; Last joined last.
	JoinDone struct {
		Submission SubmissionID
		Last       int
	}
	// SetChanged says, in order with Runs, that a process set has been made, or with
	// nil Ranks that it has been removed. A Ticket of 0: not this rank's.
	SetChanged struct {
		Submission SubmissionID
		ID         uint32
		Name       string
		Ranks      []int
	}
	// Locate asks for Here.
	Locate struct{}
	// End says that the coordinator has ended: nil when all ranks have left.
	End struct{ Err *fault.Error }
)

// A Bucket is tensors to be carried out together. It does not
// change before Spent.
type Bucket struct {
	Entries     []BucketEntry
	Part, Parts int   // of the one large tensor; else 0 and 1
	Absent      []int // ranks of the job that give nothing
	Outside     bool  // this rank is not in the process set
	Cost        int   // to be told to the Leader by Carried
}

// A BucketEntry is one tensor of a Bucket. Ticket is 0 when this rank is absent.
type BucketEntry struct {
	Spec       *Spec
	Rows       []int
	Submission SubmissionID
	state      *tensorState
}

// A WorkerInput is something that happened on this rank.
type WorkerInput interface{ applyWorker(m *Worker) }

// The inputs of a Member, beside Tick.
type (
	// Submit submits Requests as one. Tickets are numbered alike. A *Submit is
	// as good; it may be submitted again, and is found the faster then.
	Submit struct {
		Requests    []TensorRequest
		Submissions []SubmissionID
	}
	// Flush says that somebody waits for what was submitted.
	Flush struct{}
	// ResponsesReceived brings the leader's message.
	ResponsesReceived struct{ List *ResponseList }
	// Finished says that a Bucket has been carried out.
	Finished struct{ Bucket *Bucket }
	// Released gives back a Bucket that Finished was told of: nobody reads it any more.
	Released struct{ Bucket *Bucket }
	// Join says that this rank has run out of data.
	Join struct{ Submission SubmissionID }
	// Shutdown says that it submits nothing more.
	Shutdown struct{}
	// Location answers Where.
	Location struct{ At string }
	// Failed ends the coordinator on all ranks.
	Failed struct{ Err *fault.Error }
)

// NewWorker makes the Member of one rank.
func NewWorker(cfg Config, rank int) *Worker {
	w := &Worker{
		cfg: cfg, rank: rank, tensors: make(map[key]*tensorState), transient: make(map[uint32]*workerEntry),
		sets: make(map[uint32]*processSet), removing: make(map[uint32]bool),
	}
	w.sets[World] = newSet(allRanks(cfg.Size))
	w.sets[SetRegistry] = w.sets[World]
	return w
}

// Step tells the Member what happened, and when. The slice is valid until the
// next Step.
func (w *Worker) Step(now Time, in WorkerInput) []WorkerOutput {
	w.outputs = w.outputs[:0]
	w.now = max(w.now, now)
	if w.ended {
		w.rejectAfterEnd(in)
		return w.outputs
	}
	in.applyWorker(w)
	if w.hasOutgoing && (w.urgent || w.now >= w.outgoingSince+Time(w.cfg.Cycle)) {
		w.send()
	}
	return w.outputs
}

// Next is how long the Member can wait for its next Step when nothing else
// happens; ok is false when it can wait for ever.
func (w *Worker) Next() (wait Duration, ok bool) {
	if !w.hasOutgoing || w.ended {
		return 0, false
	}
	return Duration(max(0, w.outgoingSince+Time(w.cfg.Cycle)-w.now)), true
}

// rejectAfterEnd answers what is submitted after the end.
func (w *Worker) rejectAfterEnd(in WorkerInput) {
	closed := func(op string) *fault.Error {
		return &fault.Error{Kind: fault.Closed, Op: op, Rank: w.rank, Err: fmt.Errorf("the coordinator has ended")}
	}
	switch in := in.(type) {
	case *Submit:
		w.outputs = append(w.outputs, Fail{in.Submissions, closed(in.Requests[0].Call())})
	case Submit:
		w.outputs = append(w.outputs, Fail{in.Submissions, closed(in.Requests[0].Call())})
	case Join:
		w.outputs = append(w.outputs, Fail{[]SubmissionID{in.Submission}, closed("join")})
	}
}

func (Tick) applyWorker(*Worker) {}

func (Flush) applyWorker(w *Worker) { w.urgent = w.urgent || w.hasOutgoing }

func (in Join) applyWorker(w *Worker) {
	if w.joining || w.closed {
		w.outputs = append(w.outputs, Fail{[]SubmissionID{in.Submission}, &fault.Error{Kind: fault.Misuse, Op: "join", Rank: w.rank, Err: fmt.Errorf("this rank has already joined or closed")}})
		return
	}
	w.joining, w.joinSubmission = true, in.Submission
	w.outgoing.Join = true
	w.markOutgoing()
	w.urgent = true
}

func (Shutdown) applyWorker(w *Worker) {
	if w.closed {
		return
	}
	w.closed = true
	w.outgoing.Shutdown = true
	w.markOutgoing()
	w.urgent = true
}

func (in Location) applyWorker(w *Worker) {
	w.outgoing.Location, w.outgoing.HasLocation = in.At[:min(len(in.At), MaxSite)], true
	w.markOutgoing()
	w.urgent = true
}

func (in Failed) applyWorker(w *Worker) {
	w.outgoing.Fault = in.Err
	w.markOutgoing()
	w.send()
	w.end(in.Err)
}

// end ends the Member, and all that is under way.
func (w *Worker) end(err *fault.Error) {
	w.ended = true
	w.outputs = append(w.outputs, End{err})
}

func (in Finished) applyWorker(w *Worker) {
	b := in.Bucket
	if b.Part+1 < b.Parts {
		return
	}
	for i := range b.Entries {
		if r := &b.Entries[i]; r.state != nil && r.state.submission == r.Submission {
			w.complete(r.state)
		}
	}
}

// maxReleased bounds the lists that are kept for Buckets of many tensors.
const maxReleased = 16

func (in Released) applyWorker(w *Worker) {
	refs := in.Bucket.Entries
	in.Bucket.Entries = nil
	if cap(refs) > poolBatch && len(w.releasedEntries) < maxReleased {
		clear(refs)
		w.releasedEntries = append(w.releasedEntries, refs[:0])
	}
}

// complete frees a name for its next submission.
func (w *Worker) complete(n *tensorState) {
	n.submission = 0
	if n.cacheID < 0 {
		w.remove(n)
	}
}

func (w *Worker) remove(n *tensorState) {
	n.removed = true
	delete(w.tensors, n.key)
}

// fail ends submissions by name.
func (w *Worker) fail(failed []TensorName, err *fault.Error) {
	var submissions []SubmissionID
	for _, f := range failed {
		if n := w.tensors[key{f.Set, f.Name}]; n != nil && n.submission != 0 {
			submissions = append(submissions, n.submission)
			if n.request.Operation == RemoveSet && len(n.request.Shape) == 1 {
				delete(w.removing, uint32(n.request.Shape[0]))
			}
			w.complete(n)
		}
	}
	if submissions == nil {
		return
	}
	own := *err
	own.Rank, own.Op = w.rank, cmp.Or(err.Op, "coordinator")
	own.Peers = slices.Clone(err.Peers)
	w.outputs = append(w.outputs, Fail{submissions, &own})
}
