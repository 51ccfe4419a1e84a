package negotiate

import "github.com/tutti-go/tutti/fault"

// A RequestList is what a Worker sends to the Coordinator: what its rank has submitted since the
// last one, and what else the Coordinator must know of it. The wire form is in the package comment.
type RequestList struct {
	// Ack is the number of the last ResponseList that the Worker has applied. It frees evicted
	// cache IDs.
	Ack uint32
	// Cached are the cache IDs of tensors that are submitted as before, in no order: the order
	// of submissions on a rank decides nothing.
	Cached Bitset
	// Requests are submissions in full: new names, changed ones, groups, and all while the
	// cache is off.
	Requests []TensorRequest
	// Join says that this rank has run out of data, after the submissions of this list.
	Join bool
	// Shutdown says that this rank submits nothing more.
	Shutdown bool
	// Location answers a ResponseLocate if HasLocation is set. It may be empty.
	Location    string
	HasLocation bool
	// Fault ends the coordinator on all ranks: it has failed on this one.
	Fault *fault.Error
}

// A ResponseList is what the Coordinator sends to all Workers, which apply all lists in order.
type ResponseList struct {
	// Seq counts the lists from 1 on. A Worker that misses one ends the coordinator.
	Seq uint32
	// Entries come before the Responses that run them.
	Entries []CacheEntry
	// Responses are applied in order.
	Responses []Response
	// Evicted are the IDs of entries that end with this list, after its responses.
	Evicted []uint32
}

// A CacheEntry gives a tensor an ID. A live entry of the same ID is replaced.
type CacheEntry struct {
	ID uint32
	// Transient entries are for one launch, and the cache does not keep them.
	Transient bool
	Spec      *Spec
	// Rows are each rank's first dimension of an AllGather; nil for other operations.
	Rows []int
}

// A ResponseKind is what a Response asks for. The numbers are part of the wire form.
type ResponseKind uint8

// The kinds of responses.
const (
	ResponseRun       ResponseKind = 1 // execute tensors together
	ResponseFail      ResponseKind = 2 // tensors have failed
	ResponseJoined    ResponseKind = 3 // all ranks have joined, Rank as the last
	ResponseAddSet    ResponseKind = 4 // process set ID, called Name, has Ranks
	ResponseRemoveSet ResponseKind = 5 // process set ID is removed
	ResponseLocate    ResponseKind = 6 // Ranks are asked where their programs are
	ResponseAbort     ResponseKind = 7 // the coordinator ends with Err
	ResponseShutdown  ResponseKind = 8 // all ranks have shut down
	ResponseTune      ResponseKind = 9 // what follows goes by Tuning
)

// A Response is one thing that all Workers do at the same point in the order. Fields that do not
// apply to its Kind are zero.
type Response struct {
	Kind ResponseKind
	// IDs are the tensors to run. Ranges keep the list short in steady steps.
	IDs []IDRange
	// Part and Parts number the parts of one large tensor; otherwise they are 0 and 1.
	Part, Parts int
	// Ranks are the absent ones of a run, the members of a new set, or those to be located.
	// They are numbered as in the job.
	Ranks []int
	// Failed are the tensors that fail with Err.
	Failed []TensorName
	Err    *fault.Error
	ID     uint32
	Name   string
	Rank   int
	Tuning Tunables
}

// An IDRange is Count IDs from First on.
type IDRange struct{ First, Count uint32 }

// A TensorName is what a tensor is found by.
type TensorName struct {
	Set  uint32
	Name string
}
