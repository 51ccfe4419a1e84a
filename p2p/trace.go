package p2p

// An TraceKind is what a rank does in a round that concerns another.
type TraceKind uint8

// The acts.
const (
	TraceSend     TraceKind = iota + 1 // it begins to send a message
	TraceRecv                          // it has received one, and folded it
	TraceSetReady                      // it is about to set its flags of a piece
	TraceSetDone
	TraceSawReady // it has seen another's, or its own
	TraceSawDone
)

// A TraceEvent is one act of a rank, as an observer is told it.
type TraceEvent struct {
	Kind     TraceKind
	Peer     int      // the job's rank of whom it concerns; whose flag it is
	Fragment Fragment // whose flag it is; of messages, none
}

// SetTracer has see called for what this rank does in the group's rounds of all
// members and of some, in the order in which it does so, on its own goroutine.
// What a flag publishes lies in place when see is told that it is shown. It comes
// before the group's first round; tests redraw the algorithms' drawings with it.
func (g *Group) SetTracer(trace func(TraceEvent)) { g.tracer = trace }

// Number tells a piece from all others of its memory; it is equal on all members.
func (p Fragment) Number() uint64 { return p.n }
