package negotiate

import "github.com/tutti-go/tutti/fault"

// A RequestList is what a Worker sends to the Coordinator: what its rank has submitted since the
// last one, and what else the Coordinator must know of it. The wire form is in the package comment.
type RequestList struct {
	Ack         uint32 // the number of the last ResponseList applied
	Cached      Bitset // cache IDs of tensors that are submitted as before
	Requests    []TensorRequest
	Join        bool         // this rank has run out of data, after the requests
	Shutdown    bool         // this rank submits nothing more
	Location    string       // the answer to a ResponseLocate
	HasLocation bool         // Location is such an answer
	Fault       *fault.Error // the coordinator has failed on this rank
}

// A ResponseList is what the Coordinator sends to all Workers, which apply all lists in order.
type ResponseList struct {
	Seq       uint32 // 1, 2, …
	Entries   []CacheEntry
	Responses []Response
	Evicted   []uint32 // IDs whose entries have been evicted
}

// A CacheEntry gives a tensor an ID. A live entry of the same ID is replaced.
type CacheEntry struct {
	ID        uint32
	Transient bool // for one launch; the cache does not keep it
	Spec      *Spec
	Rows      []int // AllGather: each rank's first dimension
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
	Kind        ResponseKind
	IDs         []IDRange // of the tensors to run
	Part, Parts int       // of one large tensor; otherwise 0 and 1
	Ranks       []int     // run: the absent ones, numbered as in the job
	Failed      []TensorName
	Err         *fault.Error
	ID          uint32
	Name        string
	Rank        int
	Tuning      Tunables
}

// An IDRange is Count IDs from First on.
type IDRange struct{ First, Count uint32 }

// A TensorName is what a tensor is found by.
type TensorName struct {
	Set  uint32
	Name string
}
