package p2p

// A TraceKind is the kind of a TraceEvent.
type TraceKind uint8

// The kinds of events.
const (
	TraceSend     TraceKind = iota + 1 // the rank begins to send a message
	TraceRecv                          // the rank has received a message, and reduced it
	TraceSetReady                      // the rank is about to set its ready flag of a fragment
	TraceSetDone                       // the rank is about to set its done flag of a fragment
	TraceSawReady                      // the rank has seen a ready flag, of any rank
	TraceSawDone                       // the rank has seen a done flag, of any rank
)

// A TraceEvent is one action of this rank in a round, which SetTracer's function is called with.
type TraceEvent struct {
	Kind     TraceKind
	Peer     int      // the job rank of the message's other end, or of the flag's owner
	Fragment Fragment // the flag's fragment; zero for messages
}

// SetTracer registers trace, which is called for each event of this rank in the group's rounds,
// including rounds over subgroups. It is called in the order of the events, on the goroutine that
// runs the round. When it is called for a flag, the data that the flag publishes is in memory.
// SetTracer must be called before the group's first round. Tests use it to redraw the diagrams of
// the algorithms.
func (g *Group) SetTracer(trace func(TraceEvent)) { g.tracer = trace }

// Number returns the fragment's number, which is unique in its shared memory and equal on all
// members.
func (p Fragment) Number() uint64 { return p.n }
