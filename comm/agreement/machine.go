package agreement

import "slices"

// Calls is a bit set of the calls by which members entered an agreement. All members must make the
// same call. If a decision has both bits, the members have made different calls.
type Calls uint8

// The calls.
const (
	Agree  Calls = 1 << iota // decides the AND of the bits
	Shrink                   // decides the members that go on
)

// One reports whether exactly one of the calls was made.
func (c Calls) One() bool { return c == Agree || c == Shrink }

// A Proposal is the value that a leader proposes and that members decide.
type Proposal struct {
	Side    Set    // the members that may accept it
	Members Set    // the members that go on
	Bits    uint64 // the AND of the members' bits
	Calls   Calls
}

// A State is what a rank tells the other ranks about itself. The zero State means that nothing has
// arrived from the rank.
//
//	Calls  Term  Accepted  Out    the rank
//	0      0     0         false  has not entered
//	set    r+1   0         false  follows leader r, and accepts nothing of a lower term
//	set    r+1   q+1       false  follows leader r, and has accepted leader q's Proposal, where q <= r
//	set    any   any       true   has failed because there is no quorum
type State struct {
	Version  uint32 // counts the changes; a higher Version replaces an earlier State
	Calls    Calls
	Bits     uint64
	Term     int
	Accepted int // the term of Proposal; 0 if there is none
	Proposal Proposal
	Out      bool
	Dead     Set // the members that the rank knows to be dead
}

// An Input is an event of this rank. Ranks are numbered in the communicator.
type Input interface{ apply(m *Machine) }

// The inputs.
type (
	// Enter is this rank's call. Only the first Enter counts.
	Enter struct {
		Calls Calls
		Bits  uint64
	}
	// Lost says that Rank is lost to this rank for good. That member may still be alive.
	Lost struct{ Rank int }
	// Dead says that Rank will never send or decide anything again. Its process was seen to end, or
	// the rank has closed.
	Dead struct{ Rank int }
	// LinkLost says that the link between members A and B is lost, and that both are alive. A
	// leader that knows this proposes at most one of the two as a member after a Shrink.
	LinkLost struct{ A, B int }
	// Received is a State of another member.
	Received struct {
		From  int
		State State
	}
	// GiveUp says that the caller no longer waits for news of deaths. It fails the agreement of
	// this rank if the rank has entered and not decided, and Quorum returns false.
	GiveUp struct{}
)

// An Output is an action for the caller to carry out.
type Output interface{ output() }

// The outputs.
type (
	// Flood sends this rank's State to all other members.
	Flood struct{ State State }
	// Decided ends the agreement of this rank. The caller must still answer with the rank's State,
	// because other members may need it.
	Decided struct{ Proposal Proposal }
	// Failed ends the agreement of this rank. Seen is the set of the remaining members, as far as
	// this rank knows, itself included. This set is no quorum.
	Failed struct{ Seen Set }
)

func (Flood) output()   {}
func (Decided) output() {}
func (Failed) output()  {}

// A Machine is one rank's part in one agreement. It is not safe for concurrent use.
type Machine struct {
	me      int
	base    Set
	lost    Set // members that this rank no longer waits for; includes those known to be dead
	cuts    []LinkLost
	states  []State // indexed by rank; includes this rank
	decided bool
	outputs []Output
}

// New returns the Machine of rank me for the agreement of the members in base. The parameter size
// is the size of the communicator.
func New(me, size int, base Set) *Machine {
	none := All(size).Minus(All(size))
	m := &Machine{me: me, base: base, lost: none, states: make([]State, size)}
	m.states[me].Dead = none
	return m
}

// Base returns the members of the base. A quorum of them decides.
func (m *Machine) Base() Set { return m.base }

// State returns this rank's State, for a member that may have missed it.
func (m *Machine) State() State { return m.states[m.me] }

// Quorum reports whether the remaining members, as far as this rank knows, are a quorum. If they
// are not, this rank can propose nothing until it learns of a death.
func (m *Machine) Quorum() bool { return m.quorum(m.view()) }

// Waiting returns the members whose States this rank waits for. These are the remaining members
// that have not entered or that follow another leader. Once this rank has accepted a Proposal, they
// also include the members that have not accepted it.
func (m *Machine) Waiting() []int {
	own := &m.states[m.me]
	return slices.DeleteFunc(m.view().Ranks(), func(r int) bool {
		st := &m.states[r]
		return r == m.me || st.Calls != 0 && st.Term == own.Term && (own.Accepted == 0 || st.Accepted == own.Accepted)
	})
}

// Absent returns the remaining members that have not entered.
func (m *Machine) Absent() []int {
	return slices.DeleteFunc(m.view().Ranks(), func(r int) bool { return m.states[r].Calls != 0 })
}

// Step handles one Input. The caller must carry out the Outputs in order. The slice is valid until
// the next Step.
func (m *Machine) Step(in Input) []Output {
	m.outputs = m.outputs[:0]
	before := m.states[m.me]
	in.apply(m)
	m.follow()
	if own := &m.states[m.me]; *own != before && own.Calls != 0 {
		own.Version++
		m.emit(Flood{*own})
	}
	m.decide()
	return m.outputs
}

func (m *Machine) emit(o Output) { m.outputs = append(m.outputs, o) }

func (in Enter) apply(m *Machine) {
	if own := &m.states[m.me]; own.Calls == 0 {
		own.Calls, own.Bits = in.Calls, in.Bits
	}
}

func (in Lost) apply(m *Machine) {
	if in.Rank != m.me {
		m.lost = m.lost.with(in.Rank)
	}
}

func (in Dead) apply(m *Machine) {
	if in.Rank != m.me {
		own := &m.states[m.me]
		m.lost, own.Dead = m.lost.with(in.Rank), own.Dead.with(in.Rank)
	}
}

func (in LinkLost) apply(m *Machine) {
	if !slices.Contains(m.cuts, in) {
		m.cuts = append(m.cuts, in)
	}
}

func (in Received) apply(m *Machine) {
	if st := &m.states[in.From]; in.From != m.me && in.State.Version > st.Version {
		*st = in.State
		for _, r := range st.Dead.Minus(m.states[m.me].Dead).Ranks() {
			Dead{r}.apply(m)
		}
	}
}

func (in GiveUp) apply(m *Machine) {
	own := &m.states[m.me]
	if own.Calls != 0 && !own.Out && !m.decided && !m.Quorum() {
		own.Out = true
		m.emit(Failed{m.view()})
	}
}

// view returns the remaining members: those that, as far as this rank knows, are neither lost nor
// out.
func (m *Machine) view() Set {
	v := m.base.Minus(m.lost)
	for r := range m.states {
		if m.states[r].Out && r != m.me {
			v = v.Without(r)
		}
	}
	return v
}

// quorum reports whether side is a quorum; see the package comment.
func (m *Machine) quorum(side Set) bool {
	return m.majority(side) || m.base.Minus(side).Minus(m.states[m.me].Dead).Len() == 0
}

// majority reports whether side is a quorum of the first two kinds.
func (m *Machine) majority(side Set) bool {
	n, all := side.Len(), m.base.Len()
	return 2*n > all || 2*n == all && side.Has(m.base.Lowest())
}

// follow makes this rank follow the lowest remaining member. If this rank itself is the lowest, it
// proposes. Otherwise it accepts the leader's Proposal.
func (m *Machine) follow() {
	own := &m.states[m.me]
	if own.Calls == 0 || own.Out || !m.base.Has(m.me) {
		return
	}
	// No member comes back, so the number of the lowest remaining member never decreases, and
	// neither does the term.
	leader := m.view().Lowest()
	own.Term = leader + 1
	if own.Accepted == own.Term {
		return
	}
	if leader == m.me {
		m.propose()
		return
	}
	if st := &m.states[leader]; st.Accepted == own.Term && st.Proposal.Side.Has(m.me) {
		own.Accepted, own.Proposal = st.Accepted, st.Proposal
	}
}

// propose makes this rank's Proposal. It does so once all remaining members follow this rank, and
// only if they are a quorum.
func (m *Machine) propose() {
	own := &m.states[m.me]
	side := m.view()
	if !m.quorum(side) {
		return
	}
	p := Proposal{Side: side, Members: side, Bits: ^uint64(0)}
	latest := 0
	for _, r := range side.Ranks() {
		st := &m.states[r]
		if st.Calls == 0 || st.Term != own.Term {
			return
		}
		p.Bits &= st.Bits
		p.Calls |= st.Calls
		if st.Accepted > latest {
			latest = st.Accepted
		}
	}
	if p.Calls == Shrink {
		p.Members = m.linked(side)
	}
	for _, r := range side.Ranks() {
		if st := &m.states[r]; latest > 0 && st.Accepted == latest {
			p = st.Proposal
			p.Side = side
		}
	}
	own.Accepted, own.Proposal = own.Term, p
}

// linked returns the members of side that are linked with each other. Until no lost link is left,
// it removes the member with the most lost links. Of several such members, it removes the highest.
func (m *Machine) linked(side Set) Set {
	for {
		worst, most := -1, 0
		for _, r := range side.Ranks() {
			n := 0
			for _, c := range m.cuts {
				if side.Has(c.A) && side.Has(c.B) && (c.A == r || c.B == r) {
					n++
				}
			}
			if n > 0 && n >= most {
				worst, most = r, n
			}
		}
		if worst < 0 {
			return side
		}
		side = side.Without(worst)
	}
}

// decide ends the agreement once a quorum has accepted the same Proposal as this rank.
func (m *Machine) decide() {
	own := &m.states[m.me]
	if m.decided || own.Out || own.Accepted == 0 {
		return
	}
	voters := own.Proposal.Side
	for _, r := range voters.Ranks() {
		if m.states[r].Accepted != own.Accepted {
			voters = voters.Without(r)
		}
	}
	if m.majority(voters) || m.lastAlive(voters.Minus(own.Dead)) {
		m.decided = true
		m.emit(Decided{own.Proposal})
	}
}

// lastAlive reports whether all voters know that every other member of the base is dead. The
// knowledge of this rank alone is not enough. A voter that does not know of all the deaths may have
// lost this rank after the vote, and decided with members that died later.
func (m *Machine) lastAlive(voters Set) bool {
	others := m.base.Minus(voters)
	return !slices.ContainsFunc(voters.Ranks(), func(r int) bool { return others.Minus(m.states[r].Dead).Len() > 0 })
}
