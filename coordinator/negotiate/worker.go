package negotiate

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tutti-go/tutti/fault"
)

// A Worker is the state machine of one rank. It turns what the program submits into request lists,
// and the Coordinator's response lists into Buckets to execute. One goroutine at a time uses it.
//
// A tensorState is kept while its tensor is submitted or cached:
//
//	submission  cacheID  state
//	set         -1       submitted; it is not cached yet
//	set         ≥ 0      submitted; by a bit if matchesCache, else in full
//	0           ≥ 0      cached
//	0           -1       none: remove forgets it
//
// What the whole rank may still do:
//
//	flag     set by                        cleared by      submissions meanwhile
//	joining  Join                          ResponseJoined  fail with fault.Misuse
//	closed   Shutdown                      never           fail with fault.Misuse
//	ended    Failed, or the Coordinator's  never           fail with fault.Closed
//	         abort or shutdown
//
// Requests are collected in outgoing. They are sent when one of these happens: Config.Cycle has
// passed since the first, the step is complete, a group or a barrier was submitted, or a Flush,
// since a goroutine waits.
type Worker struct {
	cfg  Config
	rank int
	now  Time

	// What this rank knows of names, of cache IDs, and of IDs beyond the cache. A name points
	// to its ID and back; the ID of a name that only other ranks submit has no state here.
	tensors   map[key]*tensorState
	cache     []workerEntry           // by cache ID
	transient map[uint32]*workerEntry // by transient ID
	sets      map[uint32]*processSet

	outgoing      RequestList // what has not been sent
	hasOutgoing   bool
	outgoingSince Time   // when its first part came
	urgent        bool   // send it at the end of this Step
	applied       uint32 // the number of the last ResponseList applied

	// A step of the program is what it submits until a name comes again. step counts them,
	// stepCount the submissions of this one, and stepExpected those of the last one, which say
	// when this one is complete.
	step                    uint64
	stepCount, stepExpected int

	// joining is set from Join to the response to it, closed from Shutdown on: no submissions
	// then.
	joining, closed bool
	joinSubmission  SubmissionID
	removing        map[uint32]bool // sets whose removal this rank has submitted
	ended           bool

	// outputs is the result of this Step, in memory that is used again.
	outputs []WorkerOutput
	// Memory for Buckets and their entries, made for many at once. Buckets of many tensors have
	// lists of their own, which Released gives back.
	bucketPool      []Bucket
	entryPool       []BucketEntry
	releasedEntries [][]BucketEntry
}

// A SubmissionID is the caller's number of a submission; 0 is none.
type SubmissionID uint64

// A tensorState is what a Worker knows of a name. See Worker for its states.
type tensorState struct {
	key          key
	submission   SubmissionID // the one in flight
	request      TensorRequest
	cacheID      int  // -1: none
	matchesCache bool // request equals what the cache entry stands for
	unsent       bool // the submission is in outgoing
	step         uint64
	removed      bool // not in Worker.tensors any more
}

// A workerEntry is what an ID stands for on this rank.
type workerEntry struct {
	spec  *Spec // nil: the ID is unknown
	rows  []int
	state *tensorState // nil if this rank has not submitted the name
	set   uint32
	cost  int // of the whole tensor
}

// A WorkerOutput is something that this rank must do. String shows it in transcripts.
type WorkerOutput interface{ fmt.Stringer }

type (
	// SendRequests goes to the Coordinator. The list is the caller's.
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
	// SetChanged says, in order with Run, that a process set has been made or, with nil Ranks,
	// that it has been removed. Submission is 0 on a rank that has not asked for it.
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

// A Bucket is tensors that are executed together, or one part of a large tensor. Every rank of the
// job gets every Bucket, in the same order, since its Cost counts for all; ranks outside of the
// process set skip it. It does not change before Released.
type Bucket struct {
	Entries     []BucketEntry
	Part, Parts int   // of one large tensor; otherwise 0 and 1
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

// A WorkerInput is something that has happened on this rank.
type WorkerInput interface{ applyWorker(m *Worker) }

// The inputs of a Worker, beside Tick.
type (
	// Submit submits Requests as one; Submissions has their numbers in the same order. A
	// *Submit works as well. If the same one is submitted again, its tensor is found without
	// reading a map.
	Submit struct {
		Requests    []TensorRequest
		Submissions []SubmissionID
	}
	// Flush says that a goroutine waits for what was submitted.
	Flush struct{}
	// ResponsesReceived brings the next list of the Coordinator.
	ResponsesReceived struct{ List *ResponseList }
	// Finished says that a Bucket has been executed. Its names may be submitted again.
	Finished struct{ Bucket *Bucket }
	// Released gives the memory of a Bucket back, after Finished: nobody reads it any more.
	Released struct{ Bucket *Bucket }
	// Join says that this rank has run out of data.
	Join struct{ Submission SubmissionID }
	// Shutdown says that this rank submits nothing more.
	Shutdown struct{}
	// Location answers Locate.
	Location struct{ At string }
	// Failed ends the coordinator on all ranks.
	Failed struct{ Err *fault.Error }
)

// NewWorker makes the Worker of a rank. It knows no tensors and no sets but the one of all ranks.
func NewWorker(cfg Config, rank int) *Worker {
	w := &Worker{
		cfg: cfg, rank: rank, tensors: make(map[key]*tensorState), transient: make(map[uint32]*workerEntry),
		sets: make(map[uint32]*processSet), removing: make(map[uint32]bool),
	}
	w.sets[World] = newSet(allRanks(cfg.Size))
	w.sets[SetRegistry] = w.sets[World]
	return w
}

// Step applies an input at a time and returns what to do, in order. The slice is valid until the
// next Step. After the end it refuses submissions and does nothing else.
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

// Next is how long the Worker can wait for its next Step if nothing else happens. ok is false when
// it need not be called at all.
func (w *Worker) Next() (wait Duration, ok bool) {
	if !w.hasOutgoing || w.ended {
		return 0, false
	}
	return Duration(max(0, w.outgoingSince+Time(w.cfg.Cycle)-w.now)), true
}

// rejectAfterEnd fails what is submitted after the end.
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

// applyWorker has outgoing sent at the end of this Step, if there is something.
func (Flush) applyWorker(w *Worker) { w.urgent = w.urgent || w.hasOutgoing }

// applyWorker sends the join with all submissions before it, at once: other ranks may wait for it.
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

// applyWorker sends the shutdown with all submissions before it, at once. A second one does
// nothing.
func (Shutdown) applyWorker(w *Worker) {
	if w.closed {
		return
	}
	w.closed = true
	w.outgoing.Shutdown = true
	w.markOutgoing()
	w.urgent = true
}

// applyWorker answers the Coordinator, which waits for at most a second.
func (in Location) applyWorker(w *Worker) {
	w.outgoing.Location, w.outgoing.HasLocation = in.At[:min(len(in.At), MaxSite)], true
	w.markOutgoing()
	w.urgent = true
}

// applyWorker tells the Coordinator, which ends the other ranks, and ends this rank without waiting
// for that.
func (in Failed) applyWorker(w *Worker) {
	w.outgoing.Fault = in.Err
	w.markOutgoing()
	w.send()
	w.end(in.Err)
}

// end ends the Worker. The caller of Step ends what is in flight.
func (w *Worker) end(err *fault.Error) {
	w.ended = true
	w.outputs = append(w.outputs, End{err})
}

// applyWorker frees the names of a Bucket, but not before the last part of a large tensor.
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
	entries := in.Bucket.Entries
	in.Bucket.Entries = nil
	if cap(entries) > poolBatch && len(w.releasedEntries) < maxReleased {
		clear(entries)
		w.releasedEntries = append(w.releasedEntries, entries[:0])
	}
}

// complete ends the submission of a name, which may be submitted again.
func (w *Worker) complete(n *tensorState) {
	n.submission = 0
	if n.cacheID < 0 {
		w.remove(n)
	}
}

// remove forgets a name. The memo of a request may still point to its state, hence removed.
func (w *Worker) remove(n *tensorState) {
	n.removed = true
	delete(w.tensors, n.key)
}

// fail ends submissions by their names. Names that this rank has not submitted are skipped: the
// response goes to all ranks.
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
