package negotiate

import "github.com/tutti-go/tutti/fault"

// An RequestList is what a Member tells the leader.
type RequestList struct {
	Ack         uint32 // the number of the last Down applied
	Cached      Bitset // cached tensors that are submitted as before
	Requests    []TensorRequest
	Join        bool // after the requests: this rank has run out of data
	Shutdown    bool // it will submit nothing more
	Location    string
	HasLocation bool         // Here answers a where
	Fault       *fault.Error // the coordinator has failed on this rank
}

// A ResponseList is what the leader tells all Members. They apply all of it in order.
type ResponseList struct {
	Seq       uint32 // 1, 2, …
	Entries   []CacheEntry
	Responses []Response
	Evicted   []uint32 // numbers that mean nothing any more
}

// A CacheEntry gives a tensor a number.
type CacheEntry struct {
	ID        uint32
	Transient bool // for one launch; otherwise it is cached
	Spec      *Spec
	Rows      []int // AllGather: each rank's first dimension
}

// An ResponseKind is what an Item tells. Its numbers are part of the wire form.
type ResponseKind uint8

// The items.
const (
	ResponseRun       ResponseKind = 1 // carry tensors out
	ResponseFail      ResponseKind = 2 // tensors have failed
	ResponseJoined    ResponseKind = 3 // all ranks have joined, Rank last
	ResponseAddSet    ResponseKind = 4 // process set ID, called Name, is of Ranks
	ResponseRemoveSet ResponseKind = 5 // process set ID is no more
	ResponseLocate    ResponseKind = 6 // Ranks are asked where they are
	ResponseAbort     ResponseKind = 7 // the coordinator ends with Err
	ResponseShutdown  ResponseKind = 8 // all ranks have left
	ResponseTune      ResponseKind = 9 // what comes from now on goes by Tuning
)

// An Response is one thing that the leader tells. Fields that do not apply are zero.
type Response struct {
	Kind        ResponseKind
	IDs         []IDRange // numbers of tensors
	Part, Parts int       // of one large tensor; else 0 and 1
	Ranks       []int     // run: those absent, of the job
	Failed      []TensorName
	Err         *fault.Error
	ID          uint32
	Name        string
	Rank        int
	Tuning      Tunables
}

// A IDRange is numbers from First on.
type IDRange struct{ First, Count uint32 }

// TensorName is a tensor's set and name.
type TensorName struct {
	Set  uint32
	Name string
}
