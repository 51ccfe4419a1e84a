package part

import "fmt"

// A Mode is the consistency of a part.
type Mode uint8

// The modes; the package's comment has a table.
const (
	Synchronous Mode = iota
	Asynchronous
	Bounded
)

// A LossPolicy says what the loss of a worker means for Synchronous and Bounded parts.
type LossPolicy uint8

// The policies.
const (
	Fail     LossPolicy = iota // what waits for the lost worker is refused
	Continue                   // rounds go on without the lost worker
)

// A Config is the same on all copies of a part.
type Config struct {
	Mode      Mode
	Staleness uint64 // of Bounded
	Policy    LossPolicy
}

// An InputKind says what an Input is.
type InputKind uint8

// The kinds of Input, and the fields that each uses besides Kind and Epoch.
const (
	Push        InputKind = iota + 1 // Client, Seq, Request: a contribution
	Set                              // Client, Seq, Request: new values, which replace the present ones
	Close                            // Client, Seq, Request: the client will push no more
	Pull                             // Client, Request: it sees the client's earlier entries
	Save                             // Client, Request: as Pull, and its Answer has the State
	Replicate                        // Entry (Push, Set or Close), Index, Client, Seq, Request: from the primary
	ReplicaDone                      // Server, Index: the replica has applied all up to Index
)

// An Input is one message for a part. Request is the executor's name for a message and its buffer.
// It is not 0, and not that of another message that the Machine still has.
type Input struct {
	Kind    InputKind
	Entry   InputKind // of Replicate
	Epoch   uint64
	Index   uint64
	Client  uint64 // the random number that a client has for life
	Seq     uint64
	Server  int // rank, as in Members.Replicas
	Request uint64
}

// An OutputKind says what the executor does.
type OutputKind uint8

// The actions, and the fields that each uses. The executor may reuse the buffer of a push after its
// Fold, that of a Set after its Assign, and that of a refused or repeated request at once, unless a
// Forward still sends it.
const (
	Forward            OutputKind = iota + 1 // Server, Entry, Index, Client, Seq, Request: send a Replicate to the replica
	Fold                                     // Request, First: fold the push into the round's accumulator; the First one begins it
	Complete                                 // Version, Contributions: the accumulator makes the next version of the values
	Assign                                   // Request: the Set's values replace the present ones
	Acknowledge                              // Request, Repeated: tell the client; Repeated: it was applied before, so drop its buffer
	Answer                                   // Request, Version, State: send the present values to the client, or save them
	Refuse                                   // Request, Refusal: tell the client, except for Sealed and OtherEpoch; drop its buffer
	ReplicaAcknowledge                       // Index: tell the primary that this replica has applied all up to Index
)

// A Refusal says why a request is refused.
type Refusal uint8

// The reasons.
const (
	WorkersLost Refusal = iota + 1 // it waits for a worker that is lost: see Machine.Lost
	Sealed                         // the epoch ended; the client sends it again in the next one
	OtherEpoch                     // it is of an epoch that is not the present one
	NotPrimary                     // this copy is a replica
	Unknown                        // the client is not a worker of this epoch, or has closed
	Gap                            // the Seq is 0, or a Replicate is not the next one
)

// An Output is one action of the executor. Outputs are carried out in order.
type Output struct {
	Kind          OutputKind
	Entry         InputKind
	Refusal       Refusal
	First         bool
	Repeated      bool
	Server        int
	Index         uint64
	Client        uint64
	Seq           uint64
	Request       uint64
	Version       uint64
	Contributions int
	State         *State // of the Answer to a Save: what goes with the present values; else nil
}

// Members are the members of an epoch, as one copy sees them.
type Members struct {
	Epoch    uint64   // higher than that of the epoch before
	Primary  bool     // whether this copy is the primary
	Replicas []int    // the servers that hold the other copies, as ranks; read by the primary only
	Workers  []uint64 // the live clients in rank order
	Lost     []uint64 // under Fail: clients that are lost, and have not been replaced
}

// A Share says where a client's contribution to the present round is.
type Share uint8

// The shares.
const (
	None   Share = iota // there is none
	Held                // in a buffer of its own, until all lower ranks are folded
	Folded              // in the accumulator
)

// A ClientState is what a copy knows of one client.
type ClientState struct {
	ID      uint64
	Seq     uint64 // of the last entry that was applied
	Before  uint64 // with a Share: Seq before the entry that contributed it
	Clock   uint64 // its pushes; a client that comes later begins with the Clock of the slowest one
	Closed  bool   // no round waits for it any more; a contribution that it has made counts
	Share   Share
	Request uint64 // of Held: the buffer
}

// A State is what a hand-over, or a snapshot, carries besides the values, the accumulator and the
// buffers that are Held.
type State struct {
	Index   uint64 // of the last entry of the log
	Version uint64 // Synchronous: complete rounds; else: pushes that were applied
	Clients []ClientState
}

// reads reports whether an Input of this kind asks for the values, and changes nothing.
func (k InputKind) reads() bool { return k == Pull || k == Save }

func (k InputKind) String() string { return name(k, inputKinds[:]) }

func (k OutputKind) String() string { return name(k, outputKinds[:]) }

func (r Refusal) String() string { return name(r, refusals[:]) }

var (
	inputKinds  = [...]string{"", "push", "set", "close", "pull", "save", "replicate", "replica done"}
	outputKinds = [...]string{"", "forward", "fold", "complete", "assign", "acknowledge", "answer", "refuse", "acknowledge to the primary"}
	refusals    = [...]string{"", "a worker is lost", "the epoch has ended", "of another epoch", "not the primary", "unknown client", "a gap"}
)

func name[T ~uint8](v T, names []string) string {
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprint(uint8(v))
}
