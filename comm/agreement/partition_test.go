package agreement

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"testing"
)

// A configuration is a set of situations of a few ranks that allow the same continuations. The
// exploration of configurations covers every partition and every false suspicion, because any rank
// may lose any other rank at any time. Machines make all steps. Before each step, a Machine gets a
// new selection of the States that the other ranks have ever flooded, so a State may arrive late,
// repeatedly or never, and a rank may even forget it.
//
// A configuration leaves out what has no effect, or only removes continuations:
//
//   - All ranks have entered. A rank that has not entered has the same effect as a rank whose
//     States do not arrive.
//   - A rank loses its leader, or all ranks without which it proposes. The loss of another rank has
//     no effect before one of these events, so it may as well happen at that event.
//   - A rank that is out does nothing more, and other ranks lose it. Every rank may stop anyway.
//   - A rank is killed when the first other rank learns of it. The rank may have stopped before.
//   - A decision is noted as soon as it is possible. It does not change what a rank sends.
//   - Of two States that differ only in the known deaths, the one with more deaths stays. It counts
//     in all quorums in which the other counts.
type configuration struct {
	own     [4]uint16 // the State of each rank, as an index
	sent    [4]uint32 // the States that each rank has flooded, as an index
	killed  uint8     // a bit per rank
	decided uint8     // a bit per rank; all decisions of live ranks have the same content
	value   uint16    // a State that has the decided Proposal; 0 if there is none
}

// A table numbers values from 0 in the order in which they occur.
type table[T comparable] struct {
	numbers map[T]int
	values  []T
}

func (t *table[T]) number(v T) int {
	n, ok := t.numbers[v]
	if !ok {
		if t.numbers == nil {
			t.numbers = make(map[T]int)
		}
		n = len(t.values)
		t.numbers[v] = n
		t.values = append(t.values, v)
	}
	return n
}

// A configurationExplorer visits every configuration once.
type configurationExplorer struct {
	base   Set
	kills  int
	seen   map[configuration]struct{}
	states table[State]
	sets   table[string] // sets of States: two bytes per State
	path   []string
	steps  int
	quiet  int // how many sides have been found on which nothing happens any more
}

// machine returns the Machine of rank r in w. It has received nothing. The Machine has lost the
// ranks in front of its leader, the ranks that it knows to be dead, and the given ranks.
func (e *configurationExplorer) machine(w *configuration, r int, lost uint8) *Machine {
	m := New(r, 4, e.base)
	own := e.states.values[w.own[r]]
	m.states[r] = own
	m.decided = w.decided&(1<<r) != 0
	l := uint8(1)<<max(own.Term-1, 0) - 1 | lost | own.Dead[0]
	m.lost = Set([]byte{l})
	return m
}

// sentBy returns the States that rank q has flooded, as indices.
func (e *configurationExplorer) sentBy(w *configuration, q int) []uint16 {
	s := e.sets.values[w.sent[q]]
	list := make([]uint16, len(s)/2)
	for i := range list {
		list[i] = binary.LittleEndian.Uint16([]byte(s[2*i:]))
	}
	return list
}

// flood adds a State of rank r to the States that have been flooded, and removes States that differ
// from it only in that they know of fewer deaths.
func (e *configurationExplorer) flood(w *configuration, r int, st State) {
	var list []byte
	for _, n := range e.sentBy(w, r) {
		old := e.states.values[n]
		dead := old.Dead
		old.Dead = st.Dead
		if old != st || dead.Minus(st.Dead).Len() > 0 {
			list = binary.LittleEndian.AppendUint16(list, n)
		}
	}
	list = binary.LittleEndian.AppendUint16(list, uint16(e.states.number(st)))
	w.sent[r] = uint32(e.sets.number(string(list)))
}

// start returns the configuration in which all members of the base have entered.
func (e *configurationExplorer) start() configuration {
	var w configuration
	e.states.number(State{}) // 0: no State
	e.sets.number("")
	for _, r := range e.base.Ranks() {
		m := New(r, 4, e.base)
		m.Step(enter(r))
		st := m.State()
		st.Version = 0
		w.own[r] = uint16(e.states.number(st))
		e.flood(&w, r, st)
	}
	return w
}

// apply gives an Input to the Machine of a rank. It returns the configuration that follows and
// whether the rank has decided.
func (e *configurationExplorer) apply(w *configuration, m *Machine, in Input) (next configuration, decided bool) {
	e.steps++
	next = *w
	for _, o := range m.Step(in) {
		if _, ok := o.(Decided); ok {
			decided = true
		}
	}
	st := m.State()
	st.Version = 0
	if n := uint16(e.states.number(st)); n != w.own[m.me] {
		next.own[m.me] = n
		e.flood(&next, m.me, st)
	}
	return next, decided
}

// useful reports whether a State of rank q may have an effect on rank r: as a member that follows
// r, as a leader's Proposal, or as a vote.
func useful(own *State, r, q int, st *State) bool {
	proposes := own.Term == r+1 && own.Accepted != own.Term
	return proposes && st.Term == own.Term || st.Accepted > 0 && (own.Accepted > 0 || own.Term == q+1)
}

// receive calls f once for each selection of at most one State per rank, after m has received it.
func (e *configurationExplorer) receive(w *configuration, m *Machine, q int, f func() error) error {
	for ; q < 4; q++ {
		if q == m.me || !e.base.Has(q) {
			continue
		}
		own := m.states[m.me]
		for _, n := range e.sentBy(w, q) {
			if st := e.states.values[n]; useful(&own, m.me, q, &st) {
				m.states[q] = st
				if err := e.receive(w, m, q+1, f); err != nil {
					return err
				}
			}
		}
		m.states[q] = State{}
	}
	return f()
}

// visit explores all configurations that can follow w.
func (e *configurationExplorer) visit(w configuration) error {
	if err := e.decide(&w); err != nil {
		return err
	}
	if _, ok := e.seen[w]; ok {
		return nil
	}
	e.seen[w] = struct{}{}
	if err := e.checkEnds(&w); err != nil {
		return err
	}
	for _, r := range e.base.Ranks() {
		if w.killed&(1<<r) != 0 {
			continue
		}
		own := e.states.values[w.own[r]]
		if leader := own.Term - 1; leader != r {
			if err := e.follow(&w, e.machine(&w, r, 0), Lost{leader}); err != nil {
				return err
			}
		}
		for _, k := range e.base.Without(r).Minus(own.Dead).Ranks() {
			next := w
			if w.killed&(1<<k) == 0 {
				if e.kills == popcount(w.killed) {
					continue
				}
				next.killed |= 1 << k
				next.own[k] = 0
				if next.decided &^= 1 << k; next.decided == 0 {
					next.value = 0
				}
			}
			if err := e.follow(&next, e.machine(&next, r, 0), Dead{k}); err != nil {
				return err
			}
		}
		if own.Accepted == own.Term {
			continue
		}
		// A leader may lose any higher ranks before it proposes.
		higher := uint8(0)
		if own.Term == r+1 {
			higher = 15 &^ (1<<(r+1) - 1)
		}
		for lost := uint8(0); lost <= higher; lost++ {
			if lost&^higher != 0 {
				continue
			}
			m := e.machine(&w, r, lost)
			before := m.states[r]
			err := e.receive(&w, m, 0, func() error {
				decided := m.decided
				err := e.follow(&w, m, Enter{})
				m.states[r], m.decided = before, decided
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func popcount(b uint8) int { return Set([]byte{b}).Len() }

// follow visits the configuration that follows w after m has got an Input.
func (e *configurationExplorer) follow(w *configuration, m *Machine, in Input) error {
	next, _ := e.apply(w, m, in)
	if next == *w {
		return nil
	}
	e.path = append(e.path, fmt.Sprintf("rank %d %T%+v -> %+v", m.me, in, in, m.State()))
	err := e.visit(next)
	if err == nil {
		e.path = e.path[:len(e.path)-1]
	}
	return err
}

// decide notes the decisions that are possible in w. It returns an error if two live ranks decide
// differently.
func (e *configurationExplorer) decide(w *configuration) error {
	for _, r := range e.base.Ranks() {
		own := e.states.values[w.own[r]]
		if w.killed&(1<<r) != 0 || w.decided&(1<<r) != 0 || own.Accepted == 0 {
			continue
		}
		m := e.machine(w, r, 0)
		err := e.receive(w, m, 0, func() error {
			next, decided := e.apply(w, m, Enter{})
			m.states[r], m.decided = own, false
			if !decided || next.own != w.own { // a Proposal that the rank accepts is a step of its own
				return nil
			}
			if w.value != 0 {
				if p := e.states.values[w.value].Proposal; !sameContent(p, own.Proposal) {
					return fmt.Errorf("rank %d decides %v, another live rank has decided %v", r, own.Proposal, p)
				}
			}
			w.decided |= 1 << r
			return errDecided
		})
		if err != nil && err != errDecided {
			return err
		}
		if err == errDecided && w.value == 0 {
			c := State{Proposal: own.Proposal}
			c.Proposal.Side = ""
			w.value = uint16(e.states.number(c))
		}
	}
	return nil
}

var errDecided = errors.New("decided")

// checkEnds looks at all sets of live ranks that may be one side of a partition in w. It returns an
// error if these ranks have received all their States, none of them makes a step, and one of them
// neither decides nor gives up.
func (e *configurationExplorer) checkEnds(w *configuration) error {
sides:
	for side := uint8(1); side < 16; side++ {
		if side&(w.killed|^e.base[0]) != 0 {
			continue
		}
		s := Set([]byte{side})
		first := e.states.values[w.own[s.Lowest()]]
		for _, r := range s.Ranks() {
			own := e.states.values[w.own[r]]
			// A leader has lost all ranks that its Proposal leaves out.
			if own.Term != s.Lowest()+1 || own.Dead != first.Dead || own.Accepted == r+1 && s.Minus(own.Proposal.Side).Len() > 0 {
				continue sides
			}
		}
		var waits error
		for _, r := range s.Ranks() {
			m := e.machine(w, r, 15&^side)
			for _, q := range s.Ranks() {
				m.states[q] = e.states.values[w.own[q]]
			}
			before := m.states[r]
			m.Step(Enter{})
			after := m.states[r]
			after.Version = before.Version
			if after != before {
				continue sides
			}
			if !m.decided && m.Quorum() {
				waits = fmt.Errorf("rank %d of side %v neither decides nor gives up; it waits for %v", r, s.Ranks(), m.Waiting())
			}
		}
		e.quiet++
		if waits != nil {
			return waits
		}
	}
	return nil
}

// TestEveryPartitionAndSuspicionOfAFewRanksKeepsTheRules explores all configurations of a few
// ranks. With TUTTI_SOAK it also explores four ranks of which two are killed.
func TestEveryPartitionAndSuspicionOfAFewRanksKeepsTheRules(t *testing.T) {
	type testCase struct {
		base  Set
		kills int
	}
	cases := []testCase{{set(4, 0, 1), 1}, {set(4, 0, 1, 2), 2}, {set(4, 1, 2, 3), 2}, {All(4), 0}}
	if !raceEnabled {
		cases = append(cases, testCase{All(4), 1})
	}
	if os.Getenv("TUTTI_SOAK") != "" {
		cases = append(cases, testCase{All(4), 2})
	}
	for _, c := range cases {
		t.Run(fmt.Sprintf("ranks %v, %d killed", c.base.Ranks(), c.kills), func(t *testing.T) {
			e := &configurationExplorer{base: c.base, kills: c.kills, seen: make(map[configuration]struct{})}
			err := e.visit(e.start())
			t.Logf("ranks %v, %d killed: %d configurations, %d steps, %d sides on which nothing happens any more",
				c.base.Ranks(), c.kills, len(e.seen), e.steps, e.quiet)
			if err != nil {
				for _, event := range e.path {
					t.Log(event)
				}
				t.Fatal(err)
			}
			if e.quiet == 0 {
				t.Error("no side has come to its end")
			}
		})
	}
}
