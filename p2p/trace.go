package p2p

// A TraceKind is what a rank does in a round that involves another rank.
type TraceKind uint8

// The kinds of events.
const (
	TraceSend     TraceKind = iota + 1 // it begins to send a message
	TraceRecv                          // it has received one, and reduced it
	TraceSetReady                      // it is about to set its ready flag of a fragment
	TraceSetDone                       // or its done flag
	TraceSawReady                      // it has seen another's ready flag, or its own
	TraceSawDone                       // or a done flag
)

// A TraceEvent is one step of a rank, as a tracer sees it.
type TraceEvent struct {
	Kind     TraceKind
	Peer     int      // the job's rank at the other end of a message, or whose flag it is
	Fragment Fragment // whose flag it is; of messages, the zero Fragment
}

// SetTracer lets trace be called for what this rank does in the group's rounds, those of subgroups
// included, in the order in which it happens, on this rank's goroutine. What a flag publishes is in
// memory when trace is called for it. SetTracer comes before the group's first round. Tests redraw
// the algorithms' drawings with it.
func (g *Group) SetTracer(trace func(TraceEvent)) { g.tracer = trace }

// Number identifies a fragment among all of its memory. It is equal on all members.
func (p Fragment) Number() uint64 { return p.n }
