package negotiate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/fault"
)

// TestRandomGroupsAndSetsEndAsTheOraclePredicts runs random programs whose ranks group their
// tensors differently or refuse calls. Every submission must end as oracle predicts. It is
// executed, or it fails with a mismatch that names two disagreeing ranks and the requests of both,
// or a rank that has refused the call.
func TestRandomGroupsAndSetsEndAsTheOraclePredicts(t *testing.T) {
	seeds := 1000
	if testing.Short() {
		seeds = 100
	}
	kinds := make(map[string]int)
	for seed := range uint64(seeds) {
		g := newGroupJob(seed)
		if err := g.run(kinds); err != nil {
			t.Fatalf("seed %d, %d ranks, sets %v: %v", seed, g.n, g.sets, err)
		}
	}
	for _, kind := range []string{"done", "shape", "group", "failed before", "refused", "misuse"} {
		if kinds[kind] < seeds/10 {
			t.Errorf("got %d submissions that end by %q in %d programs; the programs test too little", kinds[kind], kind, seeds)
		}
	}
}

// A unit is one tensor, or the tensors of one group. A rank submits a unit with one call.
type unit []TensorRequest

// A groupJob is a random program. plan[step][rank] holds the units of a rank in a step. In each
// step every rank submits its units in its own order, and then waits for all of them.
type groupJob struct {
	*sim
	n int
	// changes says that ranks submit other units than the others, and refusals that ranks refuse
	// units. If a program has both, a rank that goes ahead after a refusal may change which later
	// tensors fail for good. Then the oracle predicts only that all submissions end.
	changes, refusals bool

	rnd  *rand.Rand
	sets [][]int // members of each process set; 0 is the set of all ranks
	plan [][][]unit
}

func newGroupJob(seed uint64) *groupJob {
	rnd := rand.New(rand.NewPCG(seed, 11))
	n := 2 + rnd.IntN(4)
	g := &groupJob{n: n, rnd: rnd, sets: [][]int{allRanks(n)}, sim: newSim(Config{
		Size: n, Cycle: Millisecond, Fusion: 1 << rnd.IntN(10), MaxFusedTensor: 1 << rnd.IntN(8), Partition: 16 << rnd.IntN(6),
		Credit: 1 << rnd.IntN(12), Cache: rnd.IntN(8),
	})}
	g.changes, g.refusals = seed%3 != 1, seed%3 != 0
	for range rnd.IntN(3) {
		g.sets = append(g.sets, rnd.Perm(n)[:1+rnd.IntN(n)])
	}
	for range 2 + rnd.IntN(3) {
		g.planStep()
	}
	return g
}

// planStep plans the units of a step. First it makes units on which all ranks agree. Then some
// ranks change units, or in some steps refuse units.
func (g *groupJob) planStep() {
	agreed := make([][]unit, len(g.sets))
	for set := range g.sets {
		for i, names := 0, 2+g.rnd.IntN(5); i < names; {
			var u unit
			for range 1 + g.rnd.IntN(3) {
				q := codedRequest(Plain, 0)
				q.Set, q.Name, q.Shape, q.Whole = uint32(set), fmt.Sprint("w", i), []int{1 + i}, false
				u = append(u, q)
				i++
			}
			agreed[set] = append(agreed[set], u)
		}
	}
	ranks := make([][]unit, g.n)
	refusing := !g.changes || g.refusals && g.rnd.IntN(2) == 0
	for set, inSet := range g.sets {
		for _, r := range inSet {
			units := copyUnits(agreed[set])
			switch {
			case refusing && g.rnd.IntN(2) == 0:
				for _, u := range units {
					if g.rnd.IntN(2) == 0 {
						u[g.rnd.IntN(len(u))].Root = refusedRoot
					} else if g.rnd.IntN(4) == 0 {
						u[0].Shape = []int{99}
					}
				}
			case !refusing && g.rnd.IntN(6) == 0:
				units = g.change(units)
			}
			ranks[r] = append(ranks[r], units...)
		}
	}
	for r, units := range ranks {
		g.rnd.Shuffle(len(units), func(a, b int) { units[a], units[b] = units[b], units[a] })
		for _, u := range units {
			for i := range u {
				u[i].Site = fmt.Sprintf("rank%d:%d", r, len(g.plan))
			}
			if len(u) > 1 {
				setGroup(u)
			}
		}
	}
	g.plan = append(g.plan, ranks)
}

func copyUnits(units []unit) []unit {
	var out []unit
	for _, u := range units {
		out = append(out, slices.Clone(u))
	}
	return out
}

// change makes a rank's units of one set differ from those of the other ranks.
func (g *groupJob) change(units []unit) []unit {
	at := g.rnd.IntN(len(units))
	u := units[at]
	switch g.rnd.IntN(4) {
	case 0: // another shape: the tensor fails in this step only, because all ranks submit it
		u[0].Shape = []int{99}
	case 1: // one by one instead of as a group
		units = slices.Delete(units, at, at+1)
		for _, q := range u {
			units = append(units, unit{q})
		}
	case 2: // two units as one group
		if other := (at + 1) % len(units); other != at {
			units[at] = append(u, units[other]...)
			units = slices.Delete(units, other, other+1)
		}
	case 3: // a group with a tensor that no other rank has
		q := u[0]
		q.Name = "only here"
		units[at] = append(u, q)
	}
	return units
}

// A rank refuses a unit if a tensor of the unit has this root.
const refusedRoot = 99

// refuses reports whether a rank refuses the unit.
func (u unit) refuses() bool {
	return slices.ContainsFunc(u, func(q TensorRequest) bool { return q.Root == refusedRoot })
}

// An outcome is the oracle's prediction for each tensor of a step: "done", "shape" or "group" for
// the two kinds of mismatch, "refused" if a rank has refused the tensor in this step, or "failed
// before" if the tensor has failed for good in an earlier step. On the rank that refuses it, the
// outcome is "misuse".
type outcome map[key]string

// oracle computes the outcomes of a step from the units of all ranks. failed holds the tensors of
// earlier conflicts, and oracle adds the tensors of this step's conflicts:
//
//	a tensor is in conflict     if a member of its set submits it in another group than another
//	                            member, or not at all
//	a tensor fails for good     if it is in conflict, has failed before, or any rank submits it in
//	                            one group with such a tensor and does not refuse the group
//	a group has another shape   if the ranks disagree about the shape of one of its tensors
//	a group is refused          if a rank refuses it; in these steps all ranks have equal groups
func (g *groupJob) oracle(step int, failed map[key]bool) outcome {
	out := make(outcome)
	groups := make(map[key]map[uint64]int) // for each tensor, the number of ranks by group
	shapes := make(map[key]map[int]bool)
	for _, units := range g.plan[step] {
		for _, u := range units {
			for i := range u {
				k := u[i].key()
				if groups[k] == nil {
					groups[k], shapes[k] = make(map[uint64]int), make(map[int]bool)
				}
				groups[k][u[i].Group]++
				shapes[k][u[i].Shape[0]] = true
				out[k] = "done"
			}
		}
	}
	for k := range out {
		switch {
		case failed[k]:
			out[k] = "failed before"
		case len(groups[k]) > 1 || groups[k][firstGroup(groups[k])] < len(g.sets[k.set]):
			out[k] = "group"
		}
	}
	ends := func(k key) bool { return out[k] == "group" || out[k] == "failed before" }
	for changed := true; changed; { // until no further tensor fails with its group
		changed = false
		for _, units := range g.plan[step] {
			for _, u := range units {
				if u.refuses() || !slices.ContainsFunc(u, func(q TensorRequest) bool { return ends(q.key()) }) {
					continue
				}
				for i := range u {
					if k := u[i].key(); !ends(k) {
						out[k], changed = "group", true
					}
				}
			}
		}
	}
	for _, units := range g.plan[step] {
		for _, u := range units {
			if !slices.ContainsFunc(u, func(q TensorRequest) bool { return len(shapes[q.key()]) > 1 }) {
				continue
			}
			for i := range u {
				if k := u[i].key(); out[k] == "done" {
					out[k] = "shape"
				}
			}
		}
	}
	for _, units := range g.plan[step] {
		for _, u := range units {
			for i := range u {
				if k := u[i].key(); u.refuses() && !ends(k) {
					out[k] = "refused"
				}
			}
		}
	}
	for k := range out {
		failed[k] = failed[k] || ends(k)
	}
	return out
}

func firstGroup(groups map[uint64]int) uint64 {
	for id := range groups {
		return id
	}
	return 0
}

// run makes the sets, runs the steps and compares each outcome with the oracle's.
func (g *groupJob) run(kinds map[string]int) error {
	for set, ranks := range g.sets[1:] {
		for r := range g.n {
			q := TensorRequest{Spec: Spec{Set: SetRegistry, Operation: AddSet, Name: fmt.Sprint("set", set+1), Shape: ranks, Root: -1, Pre: 1, Post: 1}}
			g.submit(r, q)
		}
		g.sim.run()
	}
	var outcomes []outcome
	failed := make(map[key]bool)
	for step := range g.plan {
		outcomes = append(outcomes, g.oracle(step, failed))
	}
	ranks := make([]groupRank, g.n)
	for turn := 0; slices.ContainsFunc(ranks, func(p groupRank) bool { return p.step < len(g.plan) }); turn++ {
		if turn > 100_000 {
			return fmt.Errorf("no end: %v", g.waiting(ranks))
		}
		moved := false
		if r := g.rnd.IntN(g.n); ranks[r].step < len(g.plan) {
			var err error
			if moved, err = g.advance(r, &ranks[r], outcomes, kinds); err != nil {
				return err
			}
		}
		if list := g.moves(); len(list) > 0 && g.rnd.IntN(4) > 0 {
			g.do(list[g.rnd.IntN(len(list))])
			moved = true
		}
		if wait, ok := g.next(); !moved && ok {
			g.tick(max(wait, Microsecond))
		}
	}
	g.sim.run()
	if left := len(g.coordinator.refused) + g.coordinator.refusedCount; left > 0 {
		return fmt.Errorf("all ranks have made all calls, but the coordinator keeps %d refused calls", g.coordinator.refusedCount)
	}
	return g.checkAgreement()
}

// A groupRank is the progress of a rank in its current step: the number of submitted units, and the
// submissions.
type groupRank struct {
	step, units int
	submissions map[SubmissionID]key
}

// advance submits the next unit of a rank. If all units of the step are submitted, advance checks
// whether all of them have ended.
func (g *groupJob) advance(r int, p *groupRank, outcomes []outcome, kinds map[string]int) (moved bool, err error) {
	if units := g.plan[p.step][r]; p.units < len(units) {
		u := units[p.units]
		first := g.submit(r, slices.Clone(u)...)
		if p.submissions == nil {
			p.submissions = make(map[SubmissionID]key)
		}
		for i := range u {
			p.submissions[first+SubmissionID(i)] = u[i].key()
		}
		p.units++
		return true, nil
	}
	for id := range p.submissions {
		if g.fate[r][id] == "" {
			g.stepWorker(r, Flush{})
			return false, nil
		}
	}
	refused := g.refused(p.step, r)
	for id, k := range p.submissions {
		want := outcomes[p.step][k]
		if refused[k] {
			want = "misuse"
		}
		if want == "misuse" || g.predictsAll() {
			kinds[want]++
		}
		if err := g.checkFate(g.fate[r][id], want, p.step, k); err != nil {
			return true, fmt.Errorf("step %d, rank %d, %v: %w", p.step, r, k, err)
		}
	}
	p.step, p.units, p.submissions = p.step+1, 0, nil
	return true, nil
}

// refused returns the tensors that a rank refuses in a step.
func (g *groupJob) refused(step, r int) map[key]bool {
	keys := make(map[key]bool)
	for _, u := range g.plan[step][r] {
		for i := range u {
			keys[u[i].key()] = u.refuses()
		}
	}
	return keys
}

// predictsAll reports whether the oracle predicts all outcomes of the program. If it does not, run
// compares only the outcomes on the ranks that refuse units.
func (g *groupJob) predictsAll() bool { return !g.changes || !g.refusals }

// checkFate compares the actual outcome of a submission with the oracle's prediction.
func (g *groupJob) checkFate(fate, want string, step int, k key) error {
	ok := !g.predictsAll()
	switch want {
	case "misuse":
		ok = strings.Contains(fate, fmt.Sprintf("misuse: root: got %d", refusedRoot))
	case "refused":
		for r := range g.n {
			named := fmt.Sprintf("[rank %d, last in ", r)
			ok = ok || g.refused(step, r)[k] && strings.Contains(fate, named) && strings.Contains(fate, "has refused its call")
		}
	case "done":
		ok = ok || fate == "done"
	case "shape":
		ok = ok || strings.Contains(fate, "disagree about the shape")
	default:
		ok = ok || strings.Contains(fate, "disagree about the group") && g.namesAConflict(fate)
	}
	if !ok {
		return fmt.Errorf("got %q, want %s", fate, want)
	}
	return nil
}

// namesAConflict reports whether an error names a tensor, two ranks, and the different groups in
// which the ranks have submitted the tensor. A rank that is one step ahead also disagrees with
// ranks that are late.
func (g *groupJob) namesAConflict(fate string) bool {
	for a := range g.n {
		for _, u := range g.requests(a, fate) {
			for b := range a {
				for _, v := range g.requests(b, fate) {
					if u.Set == v.Set && !u.sameGroup(&v) {
						return true
					}
				}
			}
		}
	}
	return false
}

// requests takes an error and a rank. It lists the rank's requests for the error's tensor, in all
// steps, but only those that the error names together with the rank.
func (g *groupJob) requests(r int, fate string) (list []Spec) {
	for step := range g.plan {
		for _, u := range g.plan[step][r] {
			for i := range u {
				if strings.HasPrefix(fate, "allreduce "+u[i].Name+":") && strings.Contains(fate, fmt.Sprintf("rank %d, last in %s", r, u[i].Call())) {
					list = append(list, u[i].Spec)
				}
			}
		}
	}
	return list
}

// waiting lists the submissions that have not ended.
func (g *groupJob) waiting(ranks []groupRank) (list []string) {
	for r, p := range ranks {
		for id, k := range p.submissions {
			if g.fate[r][id] == "" {
				list = append(list, fmt.Sprintf("rank %d step %d: %v", r, p.step, k))
			}
		}
	}
	slices.Sort(list)
	return list
}

// checkAgreement checks that all members of a set have executed the same tensors of that set, in
// the same order.
func (g *groupJob) checkAgreement() error {
	for set, ranks := range g.sets {
		for _, r := range ranks {
			if g.end[r] != "" {
				return fmt.Errorf("rank %d has ended: %s", r, g.end[r])
			}
			if got, want := g.ran[r][uint32(set)], g.ran[ranks[0]][uint32(set)]; !slices.Equal(got, want) {
				return fmt.Errorf("of set %d, rank %d ran\n%v\nand rank %d\n%v", set, r, got, ranks[0], want)
			}
		}
	}
	return nil
}

// When the record of permanent failures is full, a tensor that has failed for good must still fail
// by itself. Only a conflict about a new group may end the coordinator.
func TestOnlyANewConflictEndsACoordinatorWhoseRecordIsFull(t *testing.T) {
	s := newSim(Config{Size: 2, Cycle: Millisecond, Fusion: 1 << 10, MaxFusedTensor: 1 << 7, Partition: 1 << 10, Credit: 1 << 12})
	submit := func(rank int, names ...string) SubmissionID {
		var rs []TensorRequest
		for _, name := range names {
			q := codedRequest(Plain, 0)
			q.Name, q.Whole = name, false
			rs = append(rs, q)
		}
		if len(rs) > 1 {
			setGroup(rs)
		}
		first := s.submit(rank, rs...)
		s.stepWorker(rank, Flush{})
		s.run()
		return first
	}
	submit(0, "a", "b")
	submit(1, "a", "c")
	for i := 0; !s.coordinator.failures.full(); i++ {
		s.coordinator.failures.add(key{0, fmt.Sprint("old ", i)}, &fault.Error{Kind: fault.Mismatch})
	}
	for _, names := range [][]string{{"a", "b"}, {"a"}, {"a", "c"}} {
		id := submit(0, names...)
		if got := s.fate[0][id]; !strings.Contains(got, "disagree about the group") {
			t.Errorf("%v: got %q, want the failure of the group", names, got)
		}
	}
	submit(0, "d")
	if id := submit(1, "d"); s.fate[1][id] != "done" || s.end[0]+s.end[1] != "" {
		t.Errorf("another tensor: got %q, and the end %q, want it done", s.fate[1][id], s.end)
	}
	submit(0, "e", "f")
	submit(1, "e", "g")
	if s.end[0] == "" || s.end[1] == "" {
		t.Error("a new conflict has not ended the coordinator")
	}
}

// TestRefusedCallsAreBounded lets rank 1 refuse calls that rank 0 does not make. The Coordinator
// keeps a bounded number of them, and drops the oldest ones. When a process set is removed, the
// Coordinator drops the refused calls of this set.
func TestRefusedCallsAreBounded(t *testing.T) {
	s := newSim(Config{Size: 2, Cycle: Millisecond, Fusion: 1 << 10, MaxFusedTensor: 1 << 7, Partition: 1 << 10, Credit: 1 << 12})
	change := func(op Operation, name string, shape ...int) {
		for r := range 2 {
			s.submit(r, TensorRequest{Spec: Spec{Set: SetRegistry, Operation: op, Name: name, Shape: shape, Root: -1, Pre: 1, Post: 1}})
		}
		s.run()
	}
	refuse := func(set uint32, name string, n int) {
		var names []TensorName
		for i := range n {
			names = append(names, TensorName{set, fmt.Sprint(name, i)})
		}
		s.stepWorker(1, Refused{Tensors: names, Err: fmt.Errorf("wrong")})
		s.run()
		s.now++
	}
	submit := func(rank int, name string) string {
		q := codedRequest(Plain, 0)
		q.Name = name
		id := s.submit(rank, q)
		s.stepWorker(rank, Flush{})
		s.run()
		return s.fate[rank][id]
	}
	change(AddSet, "set", 0, 1)
	refuse(1, "a", 3)
	if got := s.coordinator.refusedCount; got != 3 {
		t.Errorf("got %d refused calls, want 3", got)
	}
	change(RemoveSet, "set", 1)
	if got := s.coordinator.refusedCount; got != 0 {
		t.Errorf("the process set was removed: got %d refused calls, want 0", got)
	}
	refuse(0, "old", 1)
	for i := range 4 {
		refuse(0, fmt.Sprint("new", i), maxRefused/4)
	}
	if got := s.coordinator.refusedCount; got != maxRefused {
		t.Errorf("got %d refused calls, want %d", got, maxRefused)
	}
	submit(1, "old0")
	if got := submit(0, "old0"); got != "done" {
		t.Errorf("the oldest call: got %q, want that it was dropped, and done", got)
	}
	if got := submit(0, "new00"); !strings.Contains(got, "has refused its call") {
		t.Errorf("a later call: got %q, want that rank 1 has refused it", got)
	}
}

// A large group takes several lists. Rank 1 refuses a call of one of its tensors, at any moment
// between these lists. All tensors of the group must fail on the other ranks, those of a later list
// included, because rank 1 never submits them.
func TestAGroupInSeveralListsFailsAsAWhole(t *testing.T) {
	var group []TensorRequest
	for i := range 3*maxRequests - 1 {
		q := codedRequest(Plain, 0)
		q.Name = fmt.Sprint("w", i)
		group = append(group, q)
	}
	setGroup(group)
	for _, refused := range []int{0, maxRequests, len(group) - 1} {
		for before := range 4 { // lists of each other rank that come before the refusal
			s := newSim(Config{Size: 3, Cycle: Millisecond, Cache: 8})
			for _, r := range []int{0, 2} {
				s.submit(r, slices.Clone(group)...)
				if got := len(s.requests[r]); got != 3 {
					t.Fatalf("got %d lists, want 3", got)
				}
				for range before {
					s.do(move{'u', r})
				}
			}
			s.stepWorker(1, Refused{Tensors: []TensorName{{World, group[refused].Name}}, Call: "a call", Site: "rank1:1", Err: fmt.Errorf("no")})
			s.do(move{'u', 1})
			s.run()
			for _, r := range []int{0, 2} {
				if got := len(s.fate[r]); got != len(group) {
					t.Errorf("tensor %d refused after %d lists: %d tensors of rank %d have failed, want %d", refused, before, got, r, len(group))
				}
				for _, what := range s.fate[r] {
					if !strings.Contains(what, "mismatch") || !strings.Contains(what, "the rank has refused its call") {
						t.Fatalf("tensor %d refused after %d lists: rank %d: got %q, want a mismatch that names the refusal", refused, before, r, what)
					}
				}
			}
			if got := s.coordinator.pendingCount; got != 0 {
				t.Errorf("tensor %d refused after %d lists: %d tensors are pending", refused, before, got)
			}
		}
	}
}
