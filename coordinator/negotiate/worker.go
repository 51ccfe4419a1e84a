package negotiate

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tutti-go/tutti/fault"
)

// A Worker is the state machine of one rank. It turns the program's submissions into request lists,
// and the Coordinator's response lists into Buckets to execute. Only one goroutine at a time may
// use it.
//
// A tensorState is kept while its tensor is submitted or cached:
//
//	submission  cacheID  state
//	set         -1       submitted; it is not cached yet
//	set         ≥ 0      submitted; by a bit if matchesCache, else in full
//	0           ≥ 0      cached
//	0           -1       none: remove forgets it
//
// The flags of the rank and their effect on submissions:
//
//	flag     set by                        cleared by      submissions meanwhile
//	joining  Join                          ResponseJoined  fail with fault.Misuse
//	closed   Shutdown                      never           fail with fault.Misuse
//	ended    Failed, or the Coordinator's  never           fail with fault.Closed
//	         abort or shutdown
//
// Requests are collected in outgoing. They are sent when Config.Cycle has passed since the first
// request, when the step is complete, when a group or a barrier is submitted, or on a Flush. A
// Flush means that a goroutine waits.
type Worker struct {
	cfg  Config
	rank int
	now  Time

	// These maps hold this rank's state of names, cache IDs and transient IDs. The tensorState of a
	// name and the workerEntry of its ID refer to each other. If only other ranks submit a name,
	// this rank has a workerEntry but no tensorState.
	tensors   map[key]*tensorState
	cache     []workerEntry           // by cache ID
	transient map[uint32]*workerEntry // by transient ID
	sets      map[uint32]*processSet

	outgoing      RequestList // requests that have not been sent
	hasOutgoing   bool
	outgoingSince Time   // when outgoing got its first request
	urgent        bool   // send outgoing at the end of this Step
	applied       uint32 // the number of the last ResponseList applied

	// A step of the program lasts until a name is submitted again. step counts the steps. stepCount
	// is the number of submissions in this step. stepExpected is the number of submissions in the
	// previous step. This step is complete when it has as many submissions.
	step                    uint64
	stepCount, stepExpected int

	// joining is set from Join until its response. closed is set from Shutdown on. While either is
	// set, submissions are refused.
	joining, closed bool
	joinSubmission  SubmissionID
	removing        map[uint32]bool // sets whose removal this rank has submitted
	ended           bool

	// outputs is the result of the current Step. Its memory is reused.
	outputs []WorkerOutput
	// These pools hold memory for Buckets and their entries, which is allocated for many Buckets at
	// once. A Bucket with many tensors has its own entry list, which Released returns.
	bucketPool      []Bucket
	entryPool       []BucketEntry
	releasedEntries [][]BucketEntry
}

// A SubmissionID is the number that the caller has given to a submission. 0 means no submission.
type SubmissionID uint64

// A tensorState is a Worker's state of a name. See Worker for the possible states.
type tensorState struct {
	key          key
	submission   SubmissionID // the submission in flight
	request      TensorRequest
	cacheID      int  // -1: none
	matchesCache bool // request equals the request of the cache entry
	unsent       bool // the submission is in outgoing
	launched     bool // the submission is in a Bucket
	step         uint64
	removed      bool // the state has been removed from Worker.tensors
}

// A workerEntry describes the tensor that an ID stands for on this rank.
type workerEntry struct {
	spec  *Spec // nil: the ID is unknown
	rows  []int
	state *tensorState // nil if this rank has not submitted the name
	set   uint32
	cost  int // the Cost of the whole tensor
}

// A WorkerOutput is an action for this rank. String shows it in transcripts.
type WorkerOutput interface{ fmt.Stringer }

type (
	// SendRequests sends List to the Coordinator. The caller owns the list.
	SendRequests struct{ List *RequestList }
	// Run is executed after all earlier outputs.
	Run struct{ Bucket *Bucket }
	// Fail ends submissions with an error.
	Fail struct {
		Submissions []SubmissionID
		Err         *fault.Error
	}
	// JoinDone ends a join. Last is the rank that joined last.
	JoinDone struct {
		Submission SubmissionID
		Last       int
	}
	// SetChanged says that a process set was added, or removed if Ranks is nil. It has the same place
	// among the Buckets of Run on every rank. Submission is 0 on a rank that has not requested the
	// change.
	SetChanged struct {
		Submission SubmissionID
		ID         uint32
		Name       string
		Ranks      []int
	}
	// Locate asks for a Location.
	Locate struct{}
	// End says that the coordinator has ended. Err is nil when all ranks have shut down.
	End struct{ Err *fault.Error }
)

// A Bucket holds tensors that are executed together, or one part of a large tensor. Every rank of
// the job gets every Bucket in the same order. A rank outside the process set does not execute the
// Bucket. A Bucket does not change before Released.
type Bucket struct {
	Entries     []BucketEntry
	Part, Parts int   // which part of a large tensor the Bucket is, and of how many; otherwise 0 and 1
	Absent      []int // ranks that contribute nothing, numbered as in the job
	Outside     bool  // this rank is not in the process set
	Cost        int   // for Executed
}

// A BucketEntry is one tensor of a Bucket. Submission is 0 when this rank is absent.
type BucketEntry struct {
	Spec       *Spec
	Rows       []int
	Submission SubmissionID
	state      *tensorState
}

// A WorkerInput is an event on this rank.
type WorkerInput interface{ applyWorker(m *Worker) }

// These are the inputs of a Worker, besides Tick.
type (
	// Submit submits Requests together. Submissions holds the number of each request, in the same
	// order. Step also accepts a *Submit. If the same request is submitted again, its tensor is
	// found without a map lookup.
	Submit struct {
		Requests    []TensorRequest
		Submissions []SubmissionID
	}
	// Refused says that the caller has refused a call for these tensors. Err says why.
	Refused struct {
		Tensors    []TensorName
		Call, Site string // the call of the first tensor, and where it is in the program
		Err        error
	}
	// Flush says that a goroutine waits for submissions.
	Flush struct{}
	// ResponsesReceived brings the next list of the Coordinator.
	ResponsesReceived struct{ List *ResponseList }
	// Finished says that a Bucket has been executed. Its names may be submitted again.
	Finished struct{ Bucket *Bucket }
	// Released returns the memory of a Bucket to the Worker. It comes after Finished, when nothing
	// reads the Bucket any more.
	Released struct{ Bucket *Bucket }
	// Join says that this rank has no more data.
	Join struct{ Submission SubmissionID }
	// Shutdown says that this rank submits nothing more.
	Shutdown struct{}
	// Location answers Locate.
	Location struct{ At string }
	// Failed ends the coordinator on all ranks.
	Failed struct{ Err *fault.Error }
)

// NewWorker returns the Worker of a rank. Initially it has no tensors, and the set of all ranks is
// its only set.
func NewWorker(cfg Config, rank int) *Worker {
	w := &Worker{
		cfg: cfg, rank: rank, tensors: make(map[key]*tensorState), transient: make(map[uint32]*workerEntry),
		sets: make(map[uint32]*processSet), removing: make(map[uint32]bool),
	}
	w.sets[World] = newSet(allRanks(cfg.Size))
	w.sets[SetRegistry] = w.sets[World]
	return w
}

// Step applies one input and returns the outputs in order. The slice is valid until the next Step.
// After the end, Step only refuses submissions.
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

// Next returns how long the Worker can wait for its next Step if no event comes. ok is false if no
// Step is needed.
func (w *Worker) Next() (wait Duration, ok bool) {
	if !w.hasOutgoing || w.ended {
		return 0, false
	}
	return Duration(max(0, w.outgoingSince+Time(w.cfg.Cycle)-w.now)), true
}

// rejectAfterEnd fails submissions that come after the end.
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

// applyWorker arranges that outgoing is sent at the end of this Step, unless it is empty.
func (Flush) applyWorker(w *Worker) { w.urgent = w.urgent || w.hasOutgoing }

// applyWorker sends the join and all earlier submissions at the end of this Step, because other
// ranks may wait for the join.
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

// applyWorker sends the shutdown and all earlier submissions at the end of this Step. A second
// shutdown does nothing.
func (Shutdown) applyWorker(w *Worker) {
	if w.closed {
		return
	}
	w.closed = true
	w.outgoing.Shutdown = true
	w.markOutgoing()
	w.urgent = true
}

// applyWorker sends the answer to the Coordinator at the end of this Step, because the Coordinator
// waits for at most a second.
func (in Location) applyWorker(w *Worker) {
	w.outgoing.Location, w.outgoing.HasLocation = in.At[:min(len(in.At), MaxSite)], true
	w.markOutgoing()
	w.urgent = true
}

// applyWorker reports the failure to the Coordinator, which ends the other ranks. It ends this rank
// at once.
func (in Failed) applyWorker(w *Worker) {
	w.outgoing.Fault = in.Err
	w.markOutgoing()
	w.send()
	w.end(in.Err)
}

// end ends the Worker. The caller of Step ends the submissions in flight.
func (w *Worker) end(err *fault.Error) {
	w.ended = true
	w.outputs = append(w.outputs, End{err})
}

// applyWorker frees the names of a Bucket. It frees the name of a large tensor only after the last
// part.
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

// maxReleased bounds the number of entry lists that are kept for reuse. They are for Buckets with
// many tensors.
const maxReleased = 16

func (in Released) applyWorker(w *Worker) {
	entries := in.Bucket.Entries
	in.Bucket.Entries = nil
	if cap(entries) > poolBatch && len(w.releasedEntries) < maxReleased {
		clear(entries)
		w.releasedEntries = append(w.releasedEntries, entries[:0])
	}
}

// complete ends the submission of a name. The name may then be submitted again.
func (w *Worker) complete(n *tensorState) {
	n.submission, n.launched = 0, false
	if n.cacheID < 0 {
		w.remove(n)
	}
}

// remove removes a name. It sets the field removed, because the memo of a request may still point
// to the state.
func (w *Worker) remove(n *tensorState) {
	n.removed = true
	delete(w.tensors, n.key)
}

// fail ends submissions by their names. It skips names that this rank has not submitted, because
// the response goes to all ranks. It also skips submissions that are in a Bucket: the failure then
// concerns the next submission of a rank that has already executed the Bucket.
func (w *Worker) fail(failed []TensorName, err *fault.Error) {
	var submissions []SubmissionID
	for _, f := range failed {
		if n := w.tensors[key{f.Set, f.Name}]; n != nil && n.submission != 0 && !n.launched {
			submissions = append(submissions, n.submission)
			// The Coordinator learns this rank's group only from the request. So the request must be sent
			// although its submission has failed, and before the program can submit the name again.
			w.urgent = w.urgent || n.unsent
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
