package negotiate

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tutti-go/tutti/fault"
)

// A Member is one rank's side. It is used by one goroutine at a time.
type Member struct {
	cfg Config
	me  int
	now Time

	names   map[key]*name
	entries []entry           // by number, of the cache
	onces   map[uint32]*entry // numbers beyond it
	sets    map[uint32]*set

	up     Up // what has not been sent
	has    bool
	since  Time // when its first part came
	urgent bool
	ack    uint32

	// A step of the program's is what is submitted until a name comes again. The
	// last one's size tells when this one is complete.
	generation    uint64
	count, expect int

	joining, leaving bool
	joinTicket       Ticket
	closing          map[uint32]bool // sets whose removal was submitted
	ended            bool

	outs    []MemberOutput
	buckets []Bucket // memory for the next ones,
	refs    []Ref    // and for their Refs,
	spent   [][]Ref  // also of Buckets of many tensors that nobody needs any more
}

// A Ticket is the runtime's number of a submission; 0 is none.
type Ticket uint64

// A name is what is known of a key while it is submitted or cached.
type name struct {
	key        key
	ticket     Ticket // of the submission under way
	request    Request
	id         int  // its number in the cache; -1: none
	agreed     bool // request is what the number means
	unsent     bool // the submission lies in up
	generation uint64
	gone       bool // not in Member.names any more
}

// An entry is what a number means.
type entry struct {
	tensor *Tensor // nil: nothing
	rows   []int
	name   *name // nil when this rank knows none
	set    uint32
	cost   int // of the whole
}

// A MemberOutput is something to be done.
type MemberOutput interface{ fmt.Stringer }

type (
	// Send goes to the leader. It is the caller's.
	Send struct{ Up *Up }
	// Run is carried out after all earlier ones.
	Run struct{ Bucket *Bucket }
	// Fail ends submissions.
	Fail struct {
		Tickets []Ticket
		Err     *fault.Error
	}
	// Joined ends a join; Last joined last.
	Joined struct {
		Ticket Ticket
		Last   int
	}
	// Set says, in order with Runs, that a process set has been made, or with
	// nil Ranks that it has been removed. A Ticket of 0: not this rank's.
	Set struct {
		Ticket Ticket
		ID     uint32
		Name   string
		Ranks  []int
	}
	// Where asks for Here.
	Where struct{}
	// End says that the coordinator has ended: nil when all ranks have left.
	End struct{ Err *fault.Error }
)

// A Bucket is tensors to be carried out together. It does not
// change before Spent.
type Bucket struct {
	Refs        []Ref
	Part, Parts int   // of the one large tensor; else 0 and 1
	Absent      []int // ranks of the job that give nothing
	Outside     bool  // this rank is not in the process set
	Cost        int   // to be told to the Leader by Carried
}

// A Ref is one tensor of a Bucket. Ticket is 0 when this rank is absent.
type Ref struct {
	Tensor *Tensor
	Rows   []int
	Ticket Ticket
	name   *name
}

// A MemberInput is something that happened on this rank.
type MemberInput interface{ applyMember(m *Member) }

// The inputs of a Member, beside Tick.
type (
	// Submit submits Requests as one. Tickets are numbered alike. A *Submit is
	// as good; it may be submitted again, and is found the faster then.
	Submit struct {
		Requests []Request
		Tickets  []Ticket
	}
	// Flush says that somebody waits for what was submitted.
	Flush struct{}
	// Heard brings the leader's message.
	Heard struct{ Down *Down }
	// Finished says that a Bucket has been carried out.
	Finished struct{ Bucket *Bucket }
	// Spent gives back a Bucket that Finished was told of: nobody reads it any more.
	Spent struct{ Bucket *Bucket }
	// Join says that this rank has run out of data.
	Join struct{ Ticket Ticket }
	// Leave says that it submits nothing more.
	Leave struct{}
	// Here answers Where.
	Here struct{ At string }
	// Failed ends the coordinator on all ranks.
	Failed struct{ Err *fault.Error }
)

// NewMember makes the Member of one rank.
func NewMember(cfg Config, rank int) *Member {
	m := &Member{
		cfg: cfg, me: rank, names: make(map[key]*name), onces: make(map[uint32]*entry),
		sets: make(map[uint32]*set), closing: make(map[uint32]bool),
	}
	m.sets[World] = newSet(everyone(cfg.Size))
	m.sets[Registry] = m.sets[World]
	return m
}

// Step tells the Member what happened, and when. The slice is valid until the
// next Step.
func (m *Member) Step(now Time, in MemberInput) []MemberOutput {
	m.outs = m.outs[:0]
	m.now = max(m.now, now)
	if m.ended {
		m.refuse(in)
		return m.outs
	}
	in.applyMember(m)
	if m.has && (m.urgent || m.now >= m.since+Time(m.cfg.Cycle)) {
		m.send()
	}
	return m.outs
}

// Next is how long the Member can wait for its next Step when nothing else
// happens; ok is false when it can wait for ever.
func (m *Member) Next() (wait Span, ok bool) {
	if !m.has || m.ended {
		return 0, false
	}
	return Span(max(0, m.since+Time(m.cfg.Cycle)-m.now)), true
}

// refuse answers what is submitted after the end.
func (m *Member) refuse(in MemberInput) {
	closed := func(op string) *fault.Error {
		return &fault.Error{Kind: fault.Closed, Op: op, Rank: m.me, Err: fmt.Errorf("the coordinator has ended")}
	}
	switch in := in.(type) {
	case *Submit:
		m.outs = append(m.outs, Fail{in.Tickets, closed(in.Requests[0].Call())})
	case Submit:
		m.outs = append(m.outs, Fail{in.Tickets, closed(in.Requests[0].Call())})
	case Join:
		m.outs = append(m.outs, Fail{[]Ticket{in.Ticket}, closed("join")})
	}
}

func (Tick) applyMember(*Member) {}

func (Flush) applyMember(m *Member) { m.urgent = m.urgent || m.has }

func (in Join) applyMember(m *Member) {
	if m.joining || m.leaving {
		m.outs = append(m.outs, Fail{[]Ticket{in.Ticket}, &fault.Error{Kind: fault.Misuse, Op: "join", Rank: m.me, Err: fmt.Errorf("this rank has joined, or closed, before")}})
		return
	}
	m.joining, m.joinTicket = true, in.Ticket
	m.up.Join = true
	m.begin()
	m.urgent = true
}

func (Leave) applyMember(m *Member) {
	if m.leaving {
		return
	}
	m.leaving = true
	m.up.Leave = true
	m.begin()
	m.urgent = true
}

func (in Here) applyMember(m *Member) {
	m.up.Here, m.up.IsHere = in.At[:min(len(in.At), MaxSite)], true
	m.begin()
	m.urgent = true
}

func (in Failed) applyMember(m *Member) {
	m.up.Fault = in.Err
	m.begin()
	m.send()
	m.end(in.Err)
}

// end ends the Member, and all that is under way.
func (m *Member) end(err *fault.Error) {
	m.ended = true
	m.outs = append(m.outs, End{err})
}

func (in Finished) applyMember(m *Member) {
	b := in.Bucket
	if b.Part+1 < b.Parts {
		return
	}
	for i := range b.Refs {
		if r := &b.Refs[i]; r.name != nil && r.name.ticket == r.Ticket {
			m.done(r.name)
		}
	}
}

// maxSpent bounds the lists that are kept for Buckets of many tensors.
const maxSpent = 16

func (in Spent) applyMember(m *Member) {
	refs := in.Bucket.Refs
	in.Bucket.Refs = nil
	if cap(refs) > manyRefs && len(m.spent) < maxSpent {
		clear(refs)
		m.spent = append(m.spent, refs[:0])
	}
}

// done frees a name for its next submission.
func (m *Member) done(n *name) {
	n.ticket = 0
	if n.id < 0 {
		m.drop(n)
	}
}

func (m *Member) drop(n *name) {
	n.gone = true
	delete(m.names, n.key)
}

// fail ends submissions by name.
func (m *Member) fail(failed []Named, err *fault.Error) {
	var tickets []Ticket
	for _, f := range failed {
		if n := m.names[key{f.Set, f.Name}]; n != nil && n.ticket != 0 {
			tickets = append(tickets, n.ticket)
			if n.request.Kind == RemoveSet && len(n.request.Shape) == 1 {
				delete(m.closing, uint32(n.request.Shape[0]))
			}
			m.done(n)
		}
	}
	if tickets == nil {
		return
	}
	own := *err
	own.Rank, own.Op = m.me, cmp.Or(err.Op, "coordinator")
	own.Peers = slices.Clone(err.Peers)
	m.outs = append(m.outs, Fail{tickets, &own})
}
