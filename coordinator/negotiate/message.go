package negotiate

import "github.com/tutti-go/tutti/fault"

// An Up is what a Member tells the leader.
type Up struct {
	Ack      uint32 // the number of the last Down applied
	Cached   Bits   // cached tensors that are submitted as before
	Requests []Request
	Join     bool // after the requests: this rank has run out of data
	Leave    bool // it will submit nothing more
	Here     string
	IsHere   bool         // Here answers a where
	Fault    *fault.Error // the coordinator has failed on this rank
}

// A Down is what the leader tells all Members. They apply all of it in order.
type Down struct {
	Seq      uint32 // 1, 2, …
	Meanings []Meaning
	Items    []Item
	Over     []uint32 // numbers that mean nothing any more
}

// A Meaning gives a tensor a number.
type Meaning struct {
	ID     uint32
	Once   bool // for one launch; otherwise it is cached
	Tensor *Tensor
	Rows   []int // AllGather: each rank's first dimension
}

// An ItemKind is what an Item tells. Its numbers are part of the wire form.
type ItemKind uint8

// The items.
const (
	ItemRun    ItemKind = 1 // carry tensors out
	ItemFail   ItemKind = 2 // tensors have failed
	ItemJoined ItemKind = 3 // all ranks have joined, Rank last
	ItemSet    ItemKind = 4 // process set ID, called Name, is of Ranks
	ItemUnset  ItemKind = 5 // process set ID is no more
	ItemWhere  ItemKind = 6 // Ranks are asked where they are
	ItemAbort  ItemKind = 7 // the coordinator ends with Err
	ItemBye    ItemKind = 8 // all ranks have left
	ItemTune   ItemKind = 9 // what comes from now on goes by Tuning
)

// An Item is one thing that the leader tells. Fields that do not apply are zero.
type Item struct {
	Kind        ItemKind
	Runs        []Span32 // numbers of tensors
	Part, Parts int      // of one large tensor; else 0 and 1
	Ranks       []int    // run: those absent, of the job
	Failed      []Named
	Err         *fault.Error
	ID          uint32
	Name        string
	Rank        int
	Tuning      Tuning
}

// A Span32 is numbers from First on.
type Span32 struct{ First, Count uint32 }

// Named is a tensor's set and name.
type Named struct {
	Set  uint32
	Name string
}
