package agreement

import (
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// A situation is the state of a few ranks. The exploration runs their Machines through every order
// of events, and checks the promises of the package comment in every situation. A mandatory event
// happens sooner or later in every run. Other events may happen.
//
//	event                                              mandatory
//	a rank enters                                      yes
//	a rank receives a State of another                 if they are linked
//	a rank loses a rank that was killed or evicted     yes
//	a rank loses a rank that a linked rank has lost    yes
//	a rank that another has lost is evicted, or loses  one of the two
//	  the other
//	a rank without a quorum gives up                   yes
//	a rank is killed                                   no; bounded
//	a rank loses a live rank by mistake                no; bounded
//	a rank loses a rank of another side                no
//	a rank learns that another was killed              no
type situation struct {
	nodes    []node
	kills    int   // how many ranks may still be killed
	mistakes int   // how many mistakes may still happen
	sides    []int // the side of each rank; ranks of different sides may lose each other
	records  bool  // deaths are recorded, so ranks may learn of them
	late     bool  // a rank may lose a killed rank before it learns of the death
}

// A node is one rank of a situation. The field sent holds all States that the rank has flooded.
// Each of them may still arrive.
type node struct {
	m       Machine
	sent    []State
	killed  bool
	evicted bool
	failed  bool
	result  *Proposal
}

// up reports whether the rank runs and belongs to the job.
func (x *node) up() bool { return !x.killed && !x.evicted }

// active reports whether the rank may still change what other ranks do. A rank that has failed
// floods no further State.
func (x *node) active() bool { return x.up() && !x.failed }

// ended reports whether the rank has no mandatory event left.
func (x *node) ended() bool { return !x.active() || x.result != nil }

func (x *node) hasBegun() bool { return x.m.State().Calls != 0 }

// step returns the node after an Input.
func (x node) step(in Input) node {
	x.m.states = slices.Clone(x.m.states)
	x.m.outputs = nil
	for _, o := range x.m.Step(in) {
		switch o := o.(type) {
		case Flood:
			x.sent = append(x.sent[:len(x.sent):len(x.sent)], o.State)
		case Failed:
			x.failed = true
		case Decided:
			x.result = &o.Proposal
		}
	}
	return x
}

// differs reports whether two nodes differ in more than the States that they have received.
func (x *node) differs(y *node) bool {
	return len(x.sent) != len(y.sent) || x.result != y.result || x.m.view() != y.m.view()
}

// newSituation returns the situation of n ranks before any event. All ranks are on one side.
func newSituation(n int) *situation {
	w := &situation{sides: make([]int, n), records: true}
	for r := range n {
		w.nodes = append(w.nodes, node{m: *New(r, n, All(n))})
	}
	return w
}

// enterAll lets all ranks enter.
func (w *situation) enterAll() *situation {
	for r := range w.nodes {
		w.nodes[r] = w.nodes[r].step(enter(r))
	}
	return w
}

func enter(r int) Input { return Enter{Shrink, ^uint64(1 << r)} }

// with returns a copy of w in which x is the node of rank r. It returns an error if x breaks a
// promise.
func (w *situation) with(r int, x node) (*situation, error) {
	c := *w
	c.nodes = slices.Clone(w.nodes)
	c.nodes[r] = x
	if x.result == w.nodes[r].result {
		return &c, nil
	}
	for q := range c.nodes {
		if y := &c.nodes[q]; q != r && !y.killed && y.result != nil && !sameContent(*x.result, *y.result) {
			return &c, fmt.Errorf("rank %d decides %v, rank %d has decided %v", r, *x.result, q, *y.result)
		}
	}
	for _, q := range x.result.Members.Ranks() {
		if x.result.Bits&(1<<q) != 0 {
			return &c, fmt.Errorf("rank %d decides without the bits of member %d", r, q)
		}
	}
	return &c, nil
}

func sameContent(a, b Proposal) bool {
	a.Side, b.Side = "", ""
	return a == b
}

// lost reports whether r has lost q.
func (w *situation) lost(r, q int) bool { return w.nodes[r].m.lost.Has(q) }

// linked reports whether two ranks are up and have not lost each other.
func (w *situation) linked(r, q int) bool {
	return r != q && w.nodes[r].up() && w.nodes[q].up() && !w.lost(r, q) && !w.lost(q, r)
}

// An event leads from one situation to the next: a rank gets an Input, or is killed or evicted.
type event struct {
	rank      int
	in        Input
	kind      string // "killed", "evicted", "by mistake"
	mandatory bool
}

// do returns the situation after an event.
func (w *situation) do(ev event) (*situation, error) {
	x := w.nodes[ev.rank]
	if ev.in != nil {
		x = x.step(ev.in)
	}
	x.killed = x.killed || ev.kind == "killed"
	x.evicted = x.evicted || ev.kind == "evicted"
	c, err := w.with(ev.rank, x)
	switch ev.kind {
	case "killed":
		c.kills--
	case "by mistake":
		c.mistakes--
	}
	return c, err
}

// events returns the events that can happen in w, except for arrivals of States.
func (w *situation) events() (list []event) {
	add := func(mandatory bool, r int, in Input, kind string) { list = append(list, event{r, in, kind, mandatory}) }
	for r := range w.nodes {
		x := &w.nodes[r]
		if !x.active() {
			continue
		}
		if !x.hasBegun() {
			add(true, r, enter(r), "")
		} else if x.result == nil && !x.m.Quorum() {
			add(true, r, GiveUp{}, "")
		}
		if w.kills > 0 {
			add(false, r, nil, "killed")
		}
		evictable := false
		for q := range w.nodes {
			y := &w.nodes[q]
			knowable := w.records && y.killed && !x.m.states[r].Dead.Has(q)
			switch {
			case q == r:
			case w.lost(r, q):
				if knowable {
					add(false, r, Dead{q}, "")
				}
			case w.mustLose(r, q):
				if !knowable || w.late {
					add(true, r, Lost{q}, "")
				}
				if knowable {
					add(!w.late, r, Dead{q}, "")
				}
			case w.sides[r] != w.sides[q]:
				add(false, r, Lost{q}, "")
			case w.mistakes > 0:
				add(false, r, Lost{q}, "by mistake")
			}
			evictable = evictable || y.up() && w.lost(q, r) && !w.lost(r, q)
		}
		if evictable {
			add(true, r, nil, "evicted")
		}
	}
	return list
}

// mustLose reports whether r must lose q sooner or later.
func (w *situation) mustLose(r, q int) bool {
	must := !w.nodes[q].up() || w.lost(q, r)
	for k := range w.nodes {
		must = must || k != q && w.linked(r, k) && w.lost(k, q)
	}
	return must
}

// An explorer visits every situation once.
type explorer struct {
	seen   map[[2]uint64]struct{}
	seeds  [2]maphash.Seed
	states map[State]uint16
	buf    []byte
	path   []event
	limit  int
	ends   int
}

// key returns a hash of w, which covers everything that events and checks depend on.
func (e *explorer) key(w *situation) [2]uint64 {
	b := append(e.buf[:0], byte(w.kills), byte(w.mistakes))
	for i := range w.nodes {
		x := &w.nodes[i]
		flags := byte(0)
		for bit, on := range []bool{x.killed, x.evicted, x.failed, x.result != nil} {
			if on {
				flags |= 1 << bit
			}
		}
		b = append(b, flags, x.m.lost[0], x.m.State().Dead[0], byte(len(x.sent)))
		for _, st := range x.sent {
			n, ok := e.states[st]
			if !ok {
				n = uint16(len(e.states))
				e.states[st] = n
			}
			b = binary.LittleEndian.AppendUint16(b, n)
		}
		for _, st := range x.m.states {
			if x.active() {
				b = append(b, byte(st.Version))
			}
		}
	}
	e.buf = b
	return [2]uint64{maphash.Bytes(e.seeds[0], b), maphash.Bytes(e.seeds[1], b)}
}

// visit explores all situations that can follow w. It returns an error if a promise is broken.
func (e *explorer) visit(w *situation) error {
	k := e.key(w)
	if _, ok := e.seen[k]; ok {
		return nil
	}
	if len(e.seen) == e.limit {
		return nil
	}
	e.seen[k] = struct{}{}
	if !slices.ContainsFunc(w.nodes, func(x node) bool { return !x.ended() }) {
		e.ends++
		return nil
	}
	quiet := true
	for _, ev := range w.events() {
		quiet = quiet && !ev.mandatory
		e.path = append(e.path, ev)
		next, err := w.do(ev)
		if err == nil {
			err = e.visit(next)
		}
		if err != nil {
			return err
		}
		e.path = e.path[:len(e.path)-1]
	}
	for r := range w.nodes {
		if w.nodes[r].active() {
			if err := e.receive(w, w.nodes[r], r, 0, true, &quiet); err != nil {
				return err
			}
		}
	}
	if !quiet {
		return nil
	}
	e.ends++
	for r := range w.nodes {
		if x := &w.nodes[r]; !x.ended() {
			return fmt.Errorf("rank %d neither decides nor fails; it waits for %v", r, x.m.Waiting())
		}
	}
	return nil
}

// receive delivers to rank r of w the States that other ranks have sent. The parameter x is the
// node of rank r after the States delivered so far, and q is the first rank whose States are left.
// If a State has an effect on other ranks, receive explores the situations that follow. A State
// without such an effect does not lead to a situation of its own: receive delivers further States
// after it. receive sets quiet to false if all States that lead to an effect must arrive.
func (e *explorer) receive(w *situation, x node, r, q int, mandatory bool, quiet *bool) error {
	for ; q < len(w.nodes); q++ {
		sent := w.nodes[q].sent
		for v := int(x.m.states[q].Version); q != r && v < len(sent); v++ {
			must := mandatory && w.linked(r, q)
			ev := event{rank: r, in: Received{q, sent[v]}}
			e.path = append(e.path, ev)
			y := x.step(ev.in)
			var err error
			if y.differs(&w.nodes[r]) {
				*quiet = *quiet && !must
				var next *situation
				if next, err = w.with(r, y); err == nil {
					err = e.visit(next)
				}
			} else {
				err = e.receive(w, y, r, q+1, must, quiet)
			}
			if err != nil {
				return err
			}
			e.path = e.path[:len(e.path)-1]
		}
	}
	return nil
}

// explore visits the situations that can follow w, and fails the test if a promise is broken. It
// stops after the given number of situations.
func explore(t *testing.T, w *situation, limit int) {
	t.Helper()
	e := &explorer{
		seen: make(map[[2]uint64]struct{}), seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
		states: make(map[State]uint16), limit: limit,
	}
	err := e.visit(w)
	t.Logf("%d situations, %d of them quiet", len(e.seen), e.ends)
	if err != nil {
		for _, ev := range e.path {
			t.Logf("rank %d %s %T%+v", ev.rank, ev.kind, ev.in, ev.in)
		}
		t.Fatal(err)
	}
}

// TestEveryOrderOfEventsOfAFewRanksKeepsTheRules explores all situations of a few ranks. The
// exploration of configurations covers four ranks with partitions and mistakes.
func TestEveryOrderOfEventsOfAFewRanksKeepsTheRules(t *testing.T) {
	type testCase struct {
		name  string
		ranks int
		set   func(w *situation)
		long  bool // takes too long under the race detector
	}
	cases := []testCase{
		{"3 ranks, 2 killed, news of deaths late", 3, func(w *situation) { w.kills, w.late = 2, true }, false},
		{"3 ranks, 1 killed, 1 lost by mistake", 3, func(w *situation) { w.kills, w.mistakes = 1, 1 }, false},
		{"3 ranks, sides 0 and 1 2, 1 killed", 3, func(w *situation) { w.enterAll(); w.kills, w.sides = 1, []int{0, 1, 1} }, false},
		{"3 ranks, sides 0, 1 and 2, 1 killed", 3, func(w *situation) { w.enterAll(); w.kills, w.sides = 1, []int{0, 1, 2} }, true},
		{"4 ranks, 2 killed, no news of deaths", 4, func(w *situation) { w.enterAll(); w.kills, w.records = 2, false }, false},
		{"4 ranks, 2 killed", 4, func(w *situation) { w.enterAll(); w.kills = 2 }, true},
	}
	for _, x := range cases {
		t.Run(x.name, func(t *testing.T) {
			w := newSituation(x.ranks)
			x.set(w)
			limit := math.MaxInt
			if raceEnabled && x.long {
				limit = 10_000
			}
			explore(t, w, limit)
		})
	}
}

// partitions returns all ways to divide n ranks into sides. Each element holds the side of each
// rank.
func partitions(n int) (all [][]int) {
	if n == 0 {
		return [][]int{{}}
	}
	for _, p := range partitions(n - 1) {
		for side := range slices.Max(append(p, -1)) + 2 {
			all = append(all, append(slices.Clone(p), side))
		}
	}
	return all
}

// TestRandomRunsKeepTheRules runs four and five ranks through random orders of events. The events
// are partitions, mistakes, kills, and States that arrive late or out of order.
func TestRandomRunsKeepTheRules(t *testing.T) {
	runs := 4_000
	if raceEnabled {
		runs = 300
	}
	parts := [][][]int{partitions(4), partitions(5)}
	for seed := range uint64(runs) {
		rng := rand.New(rand.NewPCG(seed, 3))
		ps := parts[seed%2]
		w := newSituation(len(ps[0]))
		w.sides, w.kills, w.mistakes, w.late = ps[rng.IntN(len(ps))], rng.IntN(4), rng.IntN(3), true
		w.records = rng.IntN(3) > 0
		var path []event
		for {
			list := w.events()
			for r := range w.nodes {
				list = w.arrivals(list, r)
			}
			if !slices.ContainsFunc(list, func(ev event) bool { return ev.mandatory }) {
				break
			}
			// Mistakes and kills are rare, so that most runs make many steps.
			ev := list[rng.IntN(len(list))]
			if !ev.mandatory && rng.IntN(4) > 0 {
				continue
			}
			path = append(path, ev)
			var err error
			if w, err = w.do(ev); err != nil {
				t.Fatalf("seed %d: %v\n%v", seed, err, path)
			}
		}
		for r := range w.nodes {
			if x := &w.nodes[r]; !x.ended() {
				t.Fatalf("seed %d: rank %d neither decides nor fails; it waits for %v\n%v", seed, r, x.m.Waiting(), path)
			}
		}
	}
}

// arrivals appends the events in which a State arrives at rank r.
func (w *situation) arrivals(list []event, r int) []event {
	x := &w.nodes[r]
	for q := range w.nodes {
		for v := int(x.m.states[q].Version); x.active() && q != r && v < len(w.nodes[q].sent); v++ {
			list = append(list, event{r, Received{q, w.nodes[q].sent[v]}, "", w.linked(r, q)})
		}
	}
	return list
}
