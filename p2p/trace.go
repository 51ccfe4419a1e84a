package p2p

// A TraceKind is the kind of a TraceEvent.
type TraceKind uint8

// The kinds of events.
const (
	TraceSend     TraceKind = iota + 1 // the rank begins to send a message
	TraceRecv                          // the rank has received a message and reduced its content
	TraceSetReady                      // the rank is about to set its ready flag of a fragment
	TraceSetDone                       // the rank is about to set its done flag of a fragment
	TraceSawReady                      // the rank has seen a ready flag, of any rank
	TraceSawDone                       // the rank has seen a done flag, of any rank
)

// A TraceEvent is one action of this rank in a round. It is passed to the function that SetTracer
// has registered.
type TraceEvent struct {
	Kind     TraceKind
	Peer     int      // the job rank of the message's other end, or of the flag's owner
	Fragment Fragment // the flag's fragment; zero for messages
}

// SetTracer registers a function that is called for each event of this rank in the group's rounds,
// including rounds over subgroups. The calls are in the order of the events, on the goroutine that
// runs the round. At the call for a flag, the data that the flag publishes is in memory. SetTracer
// must be called before the group's first round. Tests use it to redraw the diagrams of the
// algorithms.
func (g *Group) SetTracer(trace func(TraceEvent)) { g.tracer = trace }

// Number returns the fragment's number, which is unique in its shared memory and equal on all
// members.
func (p Fragment) Number() uint64 { return p.n }
