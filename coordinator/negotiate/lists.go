package negotiate

import "github.com/tutti-go/tutti/fault"

// A RequestList is a message from a Worker to the Coordinator. It has the submissions of the
// Worker's rank since the last list, and other events that the Coordinator must know. The package
// comment has the wire form.
type RequestList struct {
	// Ack is the number of the last ResponseList that the Worker has applied. It frees evicted
	// cache IDs.
	Ack uint32
	// Cached holds the cache IDs of tensors that are submitted unchanged. It needs no order,
	// because the order of a rank's submissions has no effect.
	Cached Bitset
	// Requests holds the submissions in full: new names, changed requests, groups, and all
	// submissions while the cache is off.
	Requests []TensorRequest
	// More says that the submissions go on in the next list. The Coordinator applies both lists when
	// the last one has come.
	More bool
	// Refused is set if the rank has refused a call. It applies after the submissions of this list.
	Refused *Refusal
	// Join says that this rank has no more data. It applies after the submissions of this list.
	Join bool
	// Shutdown says that this rank submits nothing more.
	Shutdown bool
	// Location answers a ResponseLocate if HasLocation is set. It may be empty.
	Location    string
	HasLocation bool
	// Fault is set if the coordinator has failed on this rank. It ends the coordinator on all
	// ranks.
	Fault *fault.Error
}

// A ResponseList is a message from the Coordinator to all Workers. The Workers apply all lists in
// order.
type ResponseList struct {
	// Seq counts the lists from 1 on. A Worker that misses a list ends the coordinator.
	Seq uint32
	// Entries holds new cache entries. A Worker defines them before it applies Responses. A
	// Response runs entries of this list or of earlier lists.
	Entries []CacheEntry
	// Responses are applied in order.
	Responses []Response
	// Evicted holds the IDs of cache entries. They are evicted after the responses of this list.
	Evicted []uint32
}

// A CacheEntry assigns an ID to a tensor. It replaces a live entry of the same ID.
type CacheEntry struct {
	ID uint32
	// Transient entries are for one launch. The cache does not keep them.
	Transient bool
	Spec      *Spec
	// Rows holds the first dimension of each rank for an AllGather. It is nil for other operations.
	Rows []int
}

// A ResponseKind is the kind of a Response. The numbers are part of the wire form.
type ResponseKind uint8

// The kinds of responses.
const (
	ResponseRun       ResponseKind = 1 // execute tensors together
	ResponseFail      ResponseKind = 2 // tensors have failed
	ResponseJoined    ResponseKind = 3 // all ranks have joined; Rank was the last
	ResponseAddSet    ResponseKind = 4 // process set ID, called Name, has Ranks
	ResponseRemoveSet ResponseKind = 5 // process set ID is removed
	ResponseLocate    ResponseKind = 6 // the ranks in Ranks are asked for their locations
	ResponseAbort     ResponseKind = 7 // the coordinator ends with Err
	ResponseShutdown  ResponseKind = 8 // all ranks have shut down
	ResponseTune      ResponseKind = 9 // Tuning applies to all later responses
)

// A Response is one action that all Workers perform at the same point in the order. The fields that
// its Kind does not use are zero.
type Response struct {
	Kind ResponseKind
	// IDs holds the IDs of the tensors to run. Ranges keep the list short in steady steps.
	IDs []IDRange
	// Part is the number of this part of a large tensor, and Parts is the number of its parts. A
	// whole tensor has Part 0 and Parts 1.
	Part, Parts int
	// Ranks holds the absent ranks of a run, the members of a new set, the ranks to locate, or the
	// ranks whose submissions fail. If it is empty, submissions of all ranks fail. Each rank is
	// given by its number in the job.
	Ranks []int
	// Failed holds the names of the tensors that fail with Err.
	Failed []TensorName
	Err    *fault.Error
	ID     uint32
	Name   string
	Rank   int
	Tuning Tunables
}

// An IDRange is a range of Count IDs that starts at First.
type IDRange struct{ First, Count uint32 }

// A TensorName identifies a tensor.
type TensorName struct {
	Set  uint32
	Name string
}
