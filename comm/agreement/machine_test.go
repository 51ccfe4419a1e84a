package agreement

import (
	"testing"
)

// set returns the Set of the given ranks, in a communicator of n members.
func set(n int, ranks ...int) Set {
	s := All(n).Minus(All(n))
	for _, r := range ranks {
		s = s.with(r)
	}
	return s
}

func TestQuorum(t *testing.T) {
	for name, c := range map[string]struct {
		base, side, dead Set
		want             bool
	}{
		"all":                                {set(4, 0, 1, 2, 3), set(4, 0, 1, 2, 3), set(4), true},
		"more than half":                     {set(4, 0, 1, 2, 3), set(4, 1, 2, 3), set(4), true},
		"half with the lowest":               {set(4, 0, 1, 2, 3), set(4, 0, 3), set(4), true},
		"half without the lowest":            {set(4, 0, 1, 2, 3), set(4, 1, 2), set(4), false},
		"half, of which the other is dead":   {set(4, 0, 1, 2, 3), set(4, 1, 2), set(4, 0, 3), true},
		"half, one of the others is dead":    {set(4, 0, 1, 2, 3), set(4, 1, 2), set(4, 3), false},
		"the last of two":                    {set(2, 0, 1), set(2, 1), set(2, 0), true},
		"the higher of two":                  {set(2, 0, 1), set(2, 1), set(2), false},
		"the lower of two":                   {set(2, 0, 1), set(2, 0), set(2), true},
		"one of three, one is dead":          {set(3, 0, 1, 2), set(3, 0), set(3, 2), false},
		"of a later base, half with lowest":  {set(9, 3, 8), set(9, 3), set(9), true},
		"of a later base, without lowest":    {set(9, 3, 8), set(9, 8), set(9), false},
		"one less than half of many members": {All(1001), set(1001, 0, 1, 2), set(1001), false},
	} {
		m := New(c.side.Lowest(), 8*len(c.base), c.base)
		for _, r := range c.dead.Ranks() {
			m.Step(Dead{r})
		}
		if got := m.quorum(c.side); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

// TestAShrinkExcludesTheRankWithMostLostLinks covers a leader that alone knows of lost links.
func TestAShrinkExcludesTheRankWithMostLostLinks(t *testing.T) {
	for name, c := range map[string]struct {
		calls Calls
		links []LinkLost
		want  Set
	}{
		"no link":          {Shrink, nil, All(4)},
		"one":              {Shrink, []LinkLost{{3, 1}}, set(4, 0, 1, 2)},
		"a chain":          {Shrink, []LinkLost{{1, 2}, {2, 3}}, set(4, 0, 1, 3)},
		"one rank's links": {Shrink, []LinkLost{{0, 3}, {1, 3}, {2, 3}}, set(4, 0, 1, 2)},
		"a star":           {Shrink, []LinkLost{{0, 1}, {0, 2}, {0, 3}}, set(4, 1, 2, 3)},
		"two pairs":        {Shrink, []LinkLost{{0, 2}, {3, 1}}, set(4, 0, 1)},
		"agree needs none": {Agree, []LinkLost{{0, 3}}, All(4)},
	} {
		m := New(0, 4, All(4))
		for _, l := range c.links {
			m.Step(l)
		}
		m.Step(Enter{Calls: c.calls})
		for r := 1; r < 4; r++ {
			m.Step(Received{r, State{Version: 1, Calls: c.calls, Term: 1}})
		}
		if got := m.State().Proposal.Members; got != c.want {
			t.Errorf("%s: got %v, want %v", name, got.Ranks(), c.want.Ranks())
		}
	}
}

// TestTheFirstCallCounts covers a call whose context ended, and the call after it.
func TestTheFirstCallCounts(t *testing.T) {
	m := New(0, 2, All(2))
	m.Step(Enter{Agree, 5})
	if out := m.Step(Enter{Shrink, 2}); len(out) != 0 || m.State().Calls != Agree || m.State().Bits != 5 {
		t.Errorf("got %v and state %+v, want the first call's", out, m.State())
	}
}

func TestSets(t *testing.T) {
	s := set(70, 3, 64, 69)
	if got := s.Ranks(); len(got) != 3 || got[0] != 3 || got[2] != 69 || s.Len() != 3 || s.Lowest() != 3 {
		t.Errorf("got %v of %d, lowest %d, want 3, 64 and 69", got, s.Len(), s.Lowest())
	}
	if got := s.Without(3).with(3); got != s {
		t.Errorf("got %v, want %v: sets of the same members are equal", got.Ranks(), s.Ranks())
	}
	if got := set(4).Lowest(); got != -1 {
		t.Errorf("lowest of none: got %d, want -1", got)
	}
	if got := All(70).Minus(s).Len(); got != 67 || s.Has(71) || s.Has(1000) {
		t.Errorf("got %d members, want 67, and none beyond the end", got)
	}
}

// TestARankAcceptsOnlyAProposalWhoseSideIncludesIt covers five ranks. Ranks 1 to 3 lose ranks 0 and
// 4, decide without them, and die. Rank 4 may then accept the Proposal of rank 0, because all other
// ranks are dead. A State of rank 1 that arrives late must not make rank 4 decide differently.
func TestARankAcceptsOnlyAProposalWhoseSideIncludesIt(t *testing.T) {
	m := New(4, 5, All(5))
	m.Step(Enter{Calls: Shrink})
	m.Step(Lost{0})
	p := Proposal{Side: set(5, 1, 2, 3), Members: set(5, 1, 2, 3), Calls: Shrink}
	for r := 1; r <= 3; r++ {
		for _, o := range m.Step(Received{r, State{Version: 2, Calls: Shrink, Term: 2, Accepted: 2, Proposal: p, Dead: set(5)}}) {
			t.Errorf("after the State of rank %d: got %T, want nothing", r, o)
		}
	}
	if m.State().Accepted != 0 {
		t.Error("rank 4 has accepted a Proposal of a side that it is not in")
	}
}

// TestAVoteCountsForTheLastOnesAliveIfItsRankKnowsOfTheDeaths covers five ranks. Rank 0 has lost
// rank 1 and proposes, and only rank 2 accepts. Ranks 1, 3 and 4 have lost rank 0 and decide
// something else. Then rank 2 loses ranks 0 and 1, and decides the same as ranks 1, 3 and 4. Ranks
// 1, 3 and 4 die, and rank 0 learns of these deaths. Rank 0 must not decide by the vote that rank 2
// gave before.
func TestAVoteCountsForTheLastOnesAliveIfItsRankKnowsOfTheDeaths(t *testing.T) {
	m := New(0, 5, All(5))
	m.Step(Enter{Calls: Shrink})
	m.Step(Lost{1})
	for r := 2; r < 5; r++ {
		m.Step(Received{r, State{Version: 1, Calls: Shrink, Term: 1, Dead: set(5)}})
	}
	p := m.State().Proposal
	if p.Side != set(5, 0, 2, 3, 4) {
		t.Fatalf("got a proposal for %v, want ranks 0, 2, 3 and 4", p.Side.Ranks())
	}
	vote := State{Version: 2, Calls: Shrink, Term: 1, Accepted: 1, Proposal: p, Dead: set(5)}
	m.Step(Received{2, vote})
	for _, r := range []int{1, 3, 4} {
		m.Step(Dead{r})
	}
	if m.decided {
		t.Error("rank 0 decides, and rank 2 may have decided differently")
	}
	vote.Version, vote.Dead = 3, set(5, 1, 3, 4)
	m.Step(Received{2, vote})
	if !m.decided {
		t.Error("rank 0 does not decide, though ranks 0 and 2 agree and know that all others are dead")
	}
}

// TestNewsOfADeathReachesAllMembers covers a rank without a quorum. The rank goes on once another
// member knows that the missing ranks are dead.
func TestNewsOfADeathReachesAllMembers(t *testing.T) {
	m := New(2, 4, All(4))
	m.Step(Enter{Calls: Shrink})
	m.Step(Lost{0})
	m.Step(Lost{1})
	if m.Quorum() {
		t.Fatal("two of four without the lowest are a quorum")
	}
	m.Step(Received{3, State{Version: 1, Calls: Shrink, Term: 3, Dead: set(4, 0, 1)}})
	if !m.Quorum() || m.State().Accepted != 3 {
		t.Errorf("got quorum %v and state %+v, want a Proposal of its own", m.Quorum(), m.State())
	}
}

// TestTheOthersGoOnWithoutARankThatFails covers a rank that gives up. With a quorum, GiveUp must do
// nothing. Without a quorum, the rank must flood a State that is out, and the other rank must
// decide without it.
func TestTheOthersGoOnWithoutARankThatFails(t *testing.T) {
	m := New(1, 2, All(2))
	m.Step(Enter{Calls: Agree})
	if out := m.Step(GiveUp{}); len(out) != 0 {
		t.Errorf("with a quorum: got %v, want nothing", out)
	}
	m.Step(Lost{0})
	out := m.Step(GiveUp{})
	if len(out) != 2 {
		t.Fatalf("got %v, want that it failed and a State", out)
	}
	if f, ok := out[0].(Failed); !ok || f.Seen != set(2, 1) {
		t.Errorf("got %v, want Failed with rank 1 alone", out[0])
	}
	if f, ok := out[1].(Flood); !ok || !f.State.Out {
		t.Errorf("got %v, want a State that says so", out[1])
	}
	other := New(0, 2, All(2))
	other.Step(Enter{Calls: Agree})
	other.Step(Received{1, m.State()})
	if !other.decided {
		t.Error("rank 0 waits for a rank that is out")
	}
}
