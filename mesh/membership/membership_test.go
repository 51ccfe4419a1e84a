package membership

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/fault"
)

// started returns a cluster of n ranks that have all their links.
func started(t *testing.T, n int, seed uint64) *cluster {
	t.Helper()
	w := newCluster(n, seed, true)
	w.startAll()
	w.run(Time(Second))
	if !w.completed() {
		t.Errorf("%d ranks, seed %d: not all have started after 1 s", n, seed)
	}
	return w
}

// firstFailure returns the first failure that a rank reported, or nil.
func (x *node) firstFailure() *fault.Error {
	if len(x.failures) == 0 {
		return nil
	}
	return x.failures[0].err
}

func peers(e *fault.Error) (ranks []int) {
	for _, p := range e.Peers {
		ranks = append(ranks, p.Rank)
	}
	return ranks
}

func TestRanksStartInAnyOrder(t *testing.T) {
	for n := 1; n <= 17; n++ {
		for _, joined := range []bool{true, false} {
			w := newCluster(n, uint64(n), joined)
			for r := range w.nodes {
				w.start(r, Span(w.rng.IntN(3000))*Millisecond)
			}
			w.run(Time(6 * Second))
			if !w.completed() {
				t.Errorf("%d ranks, joined %v: incomplete; missing for rank 0: %v", n, joined, w.nodes[0].state.Missing())
			}
			for r, x := range w.nodes {
				if x.firstFailure() != nil {
					t.Errorf("%d ranks, joined %v: rank %d reports %v", n, joined, r, x.firstFailure())
				}
			}
		}
	}
}

func TestARankThatNeverStartsIsMissing(t *testing.T) {
	w := newCluster(5, 1, false)
	for _, r := range []int{0, 1, 2, 4} {
		w.start(r, 0)
	}
	w.run(Time(20 * Second))
	for _, r := range []int{0, 1, 2, 4} {
		x := w.nodes[r]
		if got := x.state.Missing(); !slices.Equal(got, []int{3}) {
			t.Errorf("rank %d misses %v, want [3]", r, got)
		}
		if x.complete || x.firstFailure() != nil {
			t.Errorf("rank %d: complete %v, verdict %v; want neither", r, x.complete, x.firstFailure())
		}
	}
}

func TestAnyKilledRankIsReportedByAllWithin500ms(t *testing.T) {
	for n := 2; n <= 9; n++ {
		for i := range 2 * n {
			victim := i / 2
			w := started(t, n, uint64(n*10+victim))
			w.redial(i%2 == 1)
			start := w.now
			w.kill(victim)
			w.run(start + Time(500*Millisecond))
			for r, x := range w.nodes {
				if r == victim {
					continue
				}
				e := x.firstFailure()
				if e == nil || e.Kind != fault.PeerLost || !slices.Equal(peers(e), []int{victim}) {
					t.Errorf("%d ranks, %d killed: rank %d reports %v", n, victim, r, e)
				} else if e.Peers[0].Host != fmt.Sprintf("host-%d", victim) {
					t.Errorf("%d ranks, %d killed: rank %d names host %q", n, victim, r, e.Peers[0].Host)
				}
				if len(x.failures) > 1 {
					t.Errorf("%d ranks, %d killed: rank %d reports %d verdicts", n, victim, r, len(x.failures))
				}
			}
		}
	}
}

func TestARankThatIsCutOffIsReportedWithin4500ms(t *testing.T) {
	for n := 2; n <= 9; n++ {
		for victim := range n {
			w := started(t, n, uint64(n*10+victim))
			start := w.now
			w.isolate(victim)
			w.run(start + Time(4500*Millisecond))
			for r, x := range w.nodes {
				e := x.firstFailure()
				if e == nil || e.Kind != fault.PeerLost {
					t.Errorf("%d ranks, %d cut off: rank %d reports %v", n, victim, r, e)
				} else if r != victim && !slices.Equal(peers(e), []int{victim}) {
					t.Errorf("%d ranks, %d cut off: rank %d blames %v", n, victim, r, peers(e))
				}
			}
		}
	}
}

// A rank that is cut off must report it, also if one of the other ranks ran late and may be silent
// for longer.
func TestARankThatIsCutOffReportsIt(t *testing.T) {
	for _, late := range []Span{0, 500 * Millisecond} {
		const victim = 2
		w := started(t, 3, 1)
		w.isolate(victim)
		x := w.nodes[victim]
		x.state.ranks[0].link.delay = late
		w.run(w.now + Time(4500*Millisecond))
		if e, want := x.firstFailure(), "this rank may be the one that is cut off"; e == nil || !strings.Contains(e.Error(), want) {
			t.Errorf("rank 0 runs %v late: got %v, want %q in it", late, e, want)
		}
	}
}

func TestAPairThatIsCutLosesItsLinkOnly(t *testing.T) {
	for n := 3; n <= 9; n++ {
		w := started(t, n, uint64(n))
		start := w.now
		w.sever(0, 1)
		w.run(start + Time(5*Second))
		for r, x := range w.nodes {
			e := x.firstFailure()
			if e == nil || e.Kind != fault.LinkLost || !slices.Equal(peers(e), []int{0, 1}) || len(x.failures) != 1 {
				t.Errorf("%d ranks: rank %d reports %d verdicts, first %v", n, r, len(x.failures), e)
			}
		}
	}
}

func TestABrokenDataConnectionOfLiveRanksIsALostLink(t *testing.T) {
	for n := 2; n <= 9; n++ {
		w := started(t, n, uint64(n))
		start := w.now
		far := min(n-1, 2)
		w.step(far, DataLinkDown{0, "reset"})
		w.run(start + Time(200*Millisecond))
		for r, x := range w.nodes {
			e := x.firstFailure()
			if e == nil || e.Kind != fault.LinkLost || !slices.Equal(peers(e), []int{0, far}) {
				t.Errorf("%d ranks: rank %d reports %v", n, r, e)
			}
		}
		w.run(start + Time(10*Second))
		if got := len(w.nodes[0].failures); got != 1 {
			t.Errorf("%d ranks: %d verdicts, want 1", n, got)
		}
	}
}

// A stopped rank cannot refute, and it looks like a busy rank. So it must be reported lost only
// when it has been silent for the limit.
func TestABrokenDataConnectionToAStoppedRankIsALostRank(t *testing.T) {
	w := started(t, 5, 1)
	start := w.now
	w.stop(3)
	w.step(1, DataLinkDown{3, "refused our bytes for 5 s"})
	w.run(start + Time(3500*Millisecond))
	for _, r := range []int{0, 1, 2, 4} {
		if e := w.nodes[r].firstFailure(); e != nil {
			t.Errorf("rank %d reports %v after 3.5 s", r, e)
		}
	}
	w.run(start + Time(4500*Millisecond))
	for _, r := range []int{0, 1, 2, 4} {
		if e := w.nodes[r].firstFailure(); e == nil || e.Kind != fault.PeerLost || !slices.Equal(peers(e), []int{3}) {
			t.Errorf("rank %d reports %v", r, e)
		}
	}
}

func TestABrokenControlLinkIsRedialled(t *testing.T) {
	for n := 3; n <= 9; n++ {
		w := started(t, n, uint64(n))
		w.run(w.now + Time(2*Second))
		w.pipes[pair(0, 1)].open = [2]bool{}
		w.step(0, LinkDown{Rank: 1, Cause: "reset"})
		w.run(w.now + Time(10*Second))
		for r, x := range w.nodes {
			if x.firstFailure() != nil {
				t.Errorf("%d ranks: rank %d reports %v", n, r, x.firstFailure())
			}
		}
		if !w.nodes[0].state.ranks[1].link.up() || !w.nodes[1].state.ranks[0].link.up() {
			t.Errorf("%d ranks: the link is not up again", n)
		}
	}
}

// With Config.Redial, a rank all of whose links are reset at once is not lost, and its links come
// up again. Without the option the rank is lost, because the other ranks cannot distinguish it from
// a dead rank.
func TestARankWhoseLinksAreAllResetIsRedialled(t *testing.T) {
	for n := 2; n <= 9; n++ {
		for _, redial := range []bool{true, false} {
			w := started(t, n, uint64(n))
			w.redial(redial)
			w.run(w.now + Time(2*Second))
			for range 3 {
				for r := range n - 1 {
					w.reset(r, n-1)
				}
				w.run(w.now + Time(Second))
			}
			for r, x := range w.nodes {
				if lost := x.firstFailure() != nil; lost == redial {
					t.Errorf("%d ranks, redial %v: rank %d reports %v", n, redial, r, x.firstFailure())
				}
			}
			for _, r := range Neighbours(w.nodes[n-1].state.ranksThat(func(int) bool { return true }), n-1) {
				if redial && !(w.nodes[n-1].state.ranks[r].link.up() && w.nodes[r].state.ranks[n-1].link.up()) {
					t.Errorf("%d ranks: the link of ranks %d and %d is not up again", n, r, n-1)
				}
			}
		}
	}
}

// A network that lets no connection through closes all links of a rank, or the link of a pair. With
// Config.Redial nothing is lost if the network works again before the limit. The rank, or the link,
// is lost if the network stays like this.
func TestRanksWhoseLinksAreResetAreLostAtTheLimit(t *testing.T) {
	const silence, never = 3500 * Millisecond, 3600 * Second
	for _, n := range []int{2, 3, 4, 6, 9} {
		for _, heals := range []Span{silence - 800*Millisecond, silence - 300*Millisecond, silence - 10*Millisecond, never} {
			for _, c := range []struct {
				name        string
				unreachable bool
				handshake   Span
				late        Span // how late all ranks were shortly before
			}{
				{"dials do not end", false, 0, 0},
				{"dials do not end, slow handshakes", false, 200 * Millisecond, 0},
				{"dials do not end, ranks were late", false, 0, 200 * Millisecond},
				{"dials fail at once", true, 0, 0},
			} {
				for _, others := range []int{n - 1, 1} { // ranks from which the last rank is cut off
					name := fmt.Sprintf("%d ranks, %d cut off for %v, %s", n, others, heals, c.name)
					w := started(t, n, uint64(n))
					w.redial(true)
					w.unreachable, w.handshake = c.unreachable, c.handshake
					w.run(w.now + Time(2*Second))
					start := w.now
					for _, x := range w.nodes {
						x.state.cfg.Silence, x.state.late.current = silence, c.late
					}
					for r := range others {
						w.reset(r, n-1)
						w.sever(r, n-1)
					}
					w.after(heals, func() { clear(w.cut) })
					w.run(start + Time(silence+500*Millisecond))
					kind, lost := fault.PeerLost, []int{n - 1}
					if others < n-1 {
						kind, lost = fault.LinkLost, []int{0, n - 1}
					}
					for r, x := range w.nodes {
						e := x.firstFailure()
						switch {
						case heals != never && e != nil:
							t.Errorf("%s: rank %d reports %v", name, r, e)
						case heals != never || r == n-1 && kind == fault.PeerLost:
						case e == nil || e.Kind != kind || n > 2 && !slices.Equal(peers(e), lost):
							t.Errorf("%s: rank %d reports %v", name, r, e)
						case x.failures[0].at < start+Time(silence):
							t.Errorf("%s: rank %d reports after %v", name, r, Span(x.failures[0].at-start))
						}
					}
				}
			}
		}
	}
}

// The network drops all dials to a higher rank, and all links of a rank are reset. With
// Config.Redial no rank is lost, and the links come up again, because the lower rank of a pair
// accepts the dial of the higher rank.
func TestDialsInOneDirectionAreEnough(t *testing.T) {
	for n := 2; n <= 9; n++ {
		for _, victim := range []int{0, n / 2, n - 1} {
			w := started(t, n, uint64(n))
			w.redial(true)
			w.run(w.now + Time(2*Second))
			w.downOnly = true
			for range 2 { // a link that was first wanted after the first reset has its full time after the second
				for r := range n {
					if r != victim {
						w.reset(r, victim)
					}
				}
				w.run(w.now + Time(8*Second))
			}
			for r, x := range w.nodes {
				if e := x.firstFailure(); e != nil {
					t.Errorf("%d ranks, links of rank %d reset: rank %d reports %v", n, victim, r, e)
				}
				if !x.state.fullyLinked() {
					t.Errorf("%d ranks, links of rank %d reset: rank %d lacks links", n, victim, r)
				}
			}
		}
	}
}

// Ranks are starved, and a handshake takes longer than a dial on an idle host may take. With
// Config.Redial the limit of a dial grows, even if the load began after the last heartbeat before
// the reset. So no rank is lost.
func TestDialsOfStarvedRanksHaveMoreTime(t *testing.T) {
	for n := 2; n <= 9; n++ {
		for _, c := range []struct {
			name   string
			before bool // the load begins before the reset
			from   int  // the lowest starved rank
			busy   Span
		}{
			{"load before", true, 0, 250 * Millisecond},
			{"load at the reset", false, 0, 400 * Millisecond},
			{"load of one rank", true, n - 1, 250 * Millisecond},
		} {
			w := started(t, n, uint64(n))
			w.redial(true)
			starve := func() {
				w.handshake = 1200 * Millisecond
				for _, x := range w.nodes[c.from:] {
					x.busy = c.busy
				}
			}
			if c.before {
				starve()
			}
			w.run(w.now + Time(5*Second))
			starve()
			w.oneWay = c.from > 0
			for r := range n - 1 {
				w.reset(r, n-1)
			}
			w.run(w.now + Time(15*Second))
			for r, x := range w.nodes {
				if e := x.firstFailure(); e != nil {
					t.Errorf("%d ranks, %s: rank %d reports %v", n, c.name, r, e)
				}
				if r < n-1 && w.pipes[pair(r, n-1)] != nil && !x.state.ranks[n-1].link.up() {
					t.Errorf("%d ranks, %s: the link of ranks %d and %d is not up again", n, c.name, r, n-1)
				}
			}
		}
	}
}

// The time to refute that a Suspected message asks for is limited to a minute. With Config.Redial,
// the time of one dial is added.
func TestASecondhandSuspicionKeepsItsTime(t *testing.T) {
	for redial, want := range map[bool]Span{false: maxSilence, true: maxSilence + maxRedialTimeout} {
		s := New(Config{Me: 0, Size: 3, Joined: true, Heartbeat: 250 * Millisecond, Silence: 4 * Second, Redial: redial})
		s.Step(0, LinkUp{1})
		s.Step(0, Received{1, Message{Kind: Suspected, Origin: 1, Seq: 1, About: 2, Code: brokenLink, Age: 2 * maxSilence}})
		if got := s.suspicionOf(1, 2, false).wait; got != want {
			t.Errorf("redial %v: the suspected rank has %v, want %v", redial, got, want)
		}
	}
}

func TestAGoodbyeIsNoLossAndTheOverlayIsRebuilt(t *testing.T) {
	for n := 2; n <= 12; n++ {
		w := started(t, n, uint64(n))
		for r := n - 1; r > 0; r-- {
			w.step(r, Goodbye{})
			w.run(w.now + Time(50*Millisecond))
			if !w.nodes[r].left {
				t.Fatalf("%d ranks: rank %d has not left after 50 ms", n, r)
			}
			w.end(r)
			w.run(w.now + Time(400*Millisecond))
			for q := range r {
				x := w.nodes[q]
				if !x.state.fullyLinked() {
					t.Errorf("%d ranks, %d left: rank %d lacks links", n, r, q)
				}
				if !slices.Contains(x.departed, r) || x.firstFailure() != nil {
					t.Errorf("%d ranks, %d left: rank %d: departed %v, verdict %v", n, r, q, x.departed, x.firstFailure())
				}
			}
		}
	}
}

// An outage closes all links of a rank before or after the rank says goodbye. With Config.Redial no
// rank reports a loss, because the rank ends only when its neighbours know the goodbye.
func TestAGoodbyeDuringAnOutageIsNoLoss(t *testing.T) {
	for n := 2; n <= 6; n++ {
		for _, c := range []struct {
			closing int  // how many ranks close, the last ones; 0: rank 0
			goodbye Span // the time from the outage to the goodbye
			outage  Span
			late    Span // how late all ranks run when the outage begins
		}{
			{1, 300 * Millisecond, 2 * Second, 0},
			{1, 2 * Second, 3900 * Millisecond, 0},
			{n, 300 * Millisecond, 2 * Second, 0},
			{1, 0, 2100 * Millisecond, 0}, // the goodbye is lost
			{n, 0, 2 * Second, 0},
			{1, -3 * Millisecond, 2 * Second, 0}, // the goodbye or its acknowledgement is lost
			{1, -5 * Millisecond, 2 * Second, 0},
			{n, -4 * Millisecond, 3500 * Millisecond, 0},
			{0, 300 * Millisecond, 2 * Second, 0},
			{0, 0, 2 * Second, 0},
			{0, -Millisecond, 2 * Second, 0},
			{0, 0, 3200 * Millisecond, 0},
			{0, -Millisecond, 3700 * Millisecond, 0},
			{0, -Millisecond, 3700 * Millisecond, 200 * Millisecond},
		} {
			first, last := n-c.closing, n-1 // the ranks that close; the outage is at the last of them
			if c.closing == 0 {
				first, last = 0, 0
			}
			closes := func(r int) bool { return first <= r && r <= last }
			name := fmt.Sprintf("%d ranks, %d close %v after an outage of %v begins, %v late", n, c.closing, c.goodbye, c.outage, c.late)
			w := started(t, n, uint64(n))
			w.redial(true)
			w.run(w.now + Time(2*Second))
			w.after(Second, func() {
				for r, x := range w.nodes {
					x.state.late.current = max(x.state.late.current, c.late)
					if r != last {
						w.reset(r, last)
						w.sever(r, last)
					}
				}
			})
			w.after(Second+c.outage, func() { clear(w.cut) })
			for r := first; r <= last; r++ {
				w.after(Second+c.goodbye, func() { w.step(r, Goodbye{}) })
			}
			for end := w.now + Time(Second+c.outage+1100*Millisecond); w.now < end; {
				w.run(w.now + Time(5*Millisecond))
				for r, x := range w.nodes {
					if x.left && !x.dead {
						w.end(r)
					}
				}
			}
			for r, x := range w.nodes {
				if x.left != closes(r) {
					t.Errorf("%s: rank %d: left %v, want %v", name, r, x.left, closes(r))
				}
			}
			w.run(w.now + Time(5*Second))
			for r, x := range w.nodes {
				if x.firstFailure() != nil || !x.left && !slices.Equal(x.departed, []int{last}) {
					t.Errorf("%s: rank %d: departed %v, verdict %v", name, r, x.departed, x.firstFailure())
				}
			}
		}
	}
}

// With Config.Redial, a rank that says goodbye dials a rank that does not answer until the limit on
// silence. It does not dial a rank whose process has ended.
func TestAGoodbyeToADeadRankEnds(t *testing.T) {
	for n := 2; n <= 6; n++ {
		for _, c := range []struct {
			refused bool
			goodbye Span // the time from the death to the goodbye
			limit   Span
		}{
			{true, -Millisecond / 10, 100 * Millisecond},
			{true, 20 * Millisecond, 100 * Millisecond},
			{false, -Millisecond / 10, 4500 * Millisecond},
			{false, 20 * Millisecond, 4500 * Millisecond},
		} {
			w := started(t, n, uint64(n))
			w.redial(true)
			w.run(w.now + Time(2*Second))
			w.after(Second, func() {
				for r := range n - 1 {
					w.reset(r, n-1)
				}
				w.nodes[n-1].dead = true
				if !c.refused {
					w.isolate(n - 1)
				}
			})
			w.after(Second+c.goodbye, func() { w.step(0, Goodbye{}) })
			w.run(w.now + Time(Second+c.limit))
			if !w.nodes[0].left {
				t.Errorf("%d ranks, refused %v: rank 0 has not left %v after the death of a rank, and its goodbye %v after it", n, c.refused, c.limit, c.goodbye)
			}
		}
	}
}

func TestRanksThatCloseTogetherDoNotBlameEachOther(t *testing.T) {
	for seed := range uint64(50) {
		n := 2 + int(seed%8)
		w := started(t, n, seed)
		for r := range n {
			w.after(Span(w.rng.IntN(30))*Millisecond, func() { w.step(r, Goodbye{}) })
		}
		closed := make([]bool, n)
		for range 200 {
			w.run(w.now + Time(5*Millisecond))
			for r, x := range w.nodes {
				if x.left && !closed[r] {
					closed[r] = true
					w.end(r)
				}
			}
		}
		for r, x := range w.nodes {
			if !x.left || x.firstFailure() != nil {
				t.Errorf("seed %d: rank %d: left %v, verdict %v", seed, r, x.left, x.firstFailure())
			}
		}
	}
}

func TestAStoppedRankLearnsThatItIsBlamed(t *testing.T) {
	for n := 2; n <= 6; n++ {
		w := started(t, n, uint64(n))
		w.stop(1)
		w.run(w.now + Time(10*Second))
		if e := w.nodes[0].firstFailure(); e == nil || !slices.Equal(peers(e), []int{1}) {
			t.Fatalf("%d ranks: rank 0 reports %v", n, e)
		}
		w.resume(1)
		w.run(w.now + Time(Second))
		if e := w.nodes[1].firstFailure(); e == nil || e.Kind != fault.PeerLost || !slices.Equal(peers(e), []int{1}) {
			t.Errorf("%d ranks: the stopped rank reports %v, want itself blamed", n, e)
		}
		if got := len(w.nodes[1].failures); got != 1 {
			t.Errorf("%d ranks: the stopped rank reports %d verdicts: %v", n, got, w.nodes[1].failures)
		}
	}
}

func TestARankThatSleptDoesNotBlameTheOthers(t *testing.T) {
	s := New(Config{Me: 0, Size: 2, Joined: true, Heartbeat: 250 * Millisecond, Silence: 4 * Second})
	s.Step(0, Tick{})
	s.Step(0, LinkUp{1})
	for _, o := range s.Step(Time(60*Second), Tick{}) {
		if m, ok := o.(Send); ok && m.Msg.Kind == Suspected {
			t.Fatalf("after a minute's sleep: %v", o)
		}
	}
	now := Time(60 * Second)
	for range 14 { // this rank runs again, and the other rank stays silent
		now += Time(250 * Millisecond)
		s.Step(now, Tick{})
	}
	if !s.suspected(1) {
		t.Error("the other rank is not doubted after 4 s of silence")
	}
}

func TestAFloodReachesEveryLiveRankOnce(t *testing.T) {
	for n := 2; n <= 12; n++ {
		w := started(t, n, uint64(n))
		for r := range n {
			for i := range 20 {
				w.step(r, Flood{7, fmt.Appendf(nil, "%d", i)})
			}
		}
		w.run(w.now + Time(100*Millisecond))
		for r, x := range w.nodes {
			if got, want := len(x.flooded), 20*(n-1); got != want {
				t.Errorf("%d ranks: rank %d has %d floods, want %d", n, r, got, want)
			}
			for what, times := range x.flooded {
				if times != 1 {
					t.Errorf("%d ranks: rank %d has %q %d times", n, r, what, times)
				}
			}
		}
	}
}

func TestAQuestionIsAnsweredDirectlyOrByANeighbour(t *testing.T) {
	w := started(t, 9, 1)
	w.nodes[4].replies = func([]byte) []byte { return nil }
	w.step(0, Goodbye{})
	w.run(w.now + Time(500*Millisecond))
	w.end(0)
	w.stop(7)
	w.run(w.now + Time(Second))
	asked := w.now
	w.step(3, Question{ID: 5, Ranks: []int{0, 1, 3, 4, 7, 8}, Body: []byte("where?")})
	w.run(asked + Time(1100*Millisecond))
	got, ok := w.nodes[3].answered[5]
	if !ok {
		t.Fatal("no answer after 1.1 s")
	}
	for _, x := range got.Answers {
		text := string(x.Body)
		switch x.Rank {
		case 1, 3, 8:
			if text != "re: where?" {
				t.Errorf("rank %d said %q", x.Rank, text)
			}
		case 0, 4:
			if x.Body != nil {
				t.Errorf("rank %d said %q, want nothing", x.Rank, text)
			}
		case 7:
			if x.Body != nil || x.Silent < 1500*Millisecond || x.Silent > 2500*Millisecond {
				t.Errorf("the stopped rank: %v, want a silence of about 2 s", x)
			}
		}
	}
}

// A link that comes up late must get the floods that it missed, no matter how many questions were
// asked meanwhile. Questions themselves must not be repeated.
func TestQuestionsDoNotReplaceRememberedFloods(t *testing.T) {
	const size = 3
	s := New(Config{Size: size, Joined: true, Heartbeat: 250 * Millisecond, Silence: 4 * Second})
	s.Step(0, LinkUp{1})
	s.Step(0, Received{1, Message{Kind: App, Origin: 1, Seq: 1, Code: 7, Body: []byte("revoked")}})
	for i := range 2 * len(s.floods.messages) {
		s.Step(0, Received{1, Message{Kind: Ask, Origin: 1, Seq: uint32(2 + i), Body: []byte{0}}})
		s.Step(0, Question{ID: uint64(i), Ranks: []int{1}})
	}
	var got []Message
	for _, o := range s.Step(0, LinkUp{2}) {
		if o, ok := o.(Send); ok && (o.Msg.Kind == App || o.Msg.Kind == Ask) {
			got = append(got, o.Msg)
		}
	}
	if len(got) != 1 || string(got[0].Body) != "revoked" {
		t.Errorf("the new link gets %v, want only the flood", got)
	}
}

func TestAQuestionToLiveRanksIsAnsweredAtOnce(t *testing.T) {
	w := started(t, 9, 1)
	w.step(0, Question{ID: 1, Ranks: []int{1, 2, 3, 4, 5, 6, 7, 8}})
	w.run(w.now + Time(50*Millisecond))
	if _, ok := w.nodes[0].answered[1]; !ok {
		t.Error("no answer after 50 ms")
	}
}

func TestACancelledQuestionEndsAtOnce(t *testing.T) {
	w := started(t, 3, 1)
	w.stop(2)
	w.step(0, Question{ID: 1, Ranks: []int{2}})
	w.step(0, CancelQuestion{1})
	if _, ok := w.nodes[0].answered[1]; !ok {
		t.Error("the question goes on")
	}
}

func TestAnAnnouncedFailureReachesAllAndExplainsTheExit(t *testing.T) {
	w := started(t, 5, 1)
	e := fault.New(fault.PeerLost, "mesh", 3, "panic: %w", errors.New("boom"))
	e.Peers = []fault.Peer{{Rank: 3}}
	w.step(3, Announce{Err: e})
	w.run(w.now + Time(5*Millisecond))
	w.kill(3)
	w.run(w.now + Time(2*Second))
	for _, r := range []int{0, 1, 2, 4} {
		x := w.nodes[r]
		if len(x.failures) != 1 || x.firstFailure().Error() != e.Error() {
			t.Errorf("rank %d reports %v", r, x.failures)
		}
	}
}

// Rank 3 aborts and exits while the loss of rank 0 is being agreed on. All ranks must report both.
func TestAnAbortThatCompetesWithALossIsReportedAfterIt(t *testing.T) {
	w := started(t, 5, 1)
	lost := fault.New(fault.PeerLost, "mesh", 1, "gone")
	lost.Peers = []fault.Peer{{Rank: 0}}
	abort := fault.New(fault.PeerLost, "abort", 3, "disk full")
	abort.Peers = []fault.Peer{{Rank: 3}}
	w.step(1, Announce{Err: lost})
	w.step(3, Announce{Err: abort})
	w.run(w.now + Time(10*Millisecond))
	w.kill(3)
	w.run(w.now + Time(2*Second))
	for _, r := range []int{1, 2, 4} {
		x := w.nodes[r]
		if len(x.failures) != 2 || x.failures[0].err.Error() != lost.Error() || x.failures[1].err.Error() != abort.Error() {
			t.Errorf("rank %d reports %v, want the loss of rank 0 and the abort", r, x.failures)
		}
	}
}

func TestConcurrentFailuresAreReportedInOneOrder(t *testing.T) {
	w := started(t, 9, 1)
	for _, r := range []int{8, 5, 2} {
		w.step(r, Announce{Err: fault.New(fault.Revoked, "abort", r, "code %d", r)})
	}
	w.run(w.now + Time(2*Second))
	for r, x := range w.nodes {
		var got []int
		for _, rep := range x.failures {
			got = append(got, rep.err.Rank)
		}
		if !slices.Equal(got, []int{2, 5, 8}) {
			t.Errorf("rank %d hears the aborts of %v, want [2 5 8]", r, got)
		}
	}
}

func TestAWindowReportsEachNumberOnce(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var w window
	seen := map[uint32]bool{}
	at := uint32(1)
	for range 20000 {
		n := at + uint32(rng.IntN(400))
		if rng.IntN(500) == 0 {
			n += 5000
		}
		if want := !seen[n]; w.add(n) != want {
			t.Fatalf("number %d after %d: new %v, want %v", n, w.last, !want, want)
		}
		seen[n] = true
		at = max(w.last, 500) - 499
	}
	if w.add(0) || w.add(1) {
		t.Error("0 and what is long past must count as seen")
	}
	var top window
	if !top.add(1<<32-1) || top.add(1<<32-1) {
		t.Error("the last number there is must be new once")
	}
}

func TestNeighboursStayConnectedWithoutAnyOne(t *testing.T) {
	for n := 2; n <= 40; n++ {
		members := make([]int, n)
		for i := range members {
			members[i] = i * 3
		}
		for gone := range n {
			reached := map[int]bool{}
			var visit func(i int)
			visit = func(i int) {
				if i == gone || reached[i] {
					return
				}
				reached[i] = true
				for _, r := range Neighbours(members, i) {
					visit(r / 3)
				}
			}
			visit((gone + 1) % n)
			if len(reached) != n-1 {
				t.Errorf("%d ranks without %d: %d reached, want %d", n, gone, len(reached), n-1)
			}
		}
		for i := range members {
			for _, r := range Neighbours(members, i) {
				if r == members[i] || !slices.Contains(Neighbours(members, r/3), members[i]) {
					t.Errorf("%d ranks: %d wants %d, but not the other way round", n, members[i], r)
				}
			}
		}
	}
}

// Rank 1 is cut off from all other ranks. A cut that ends before the limit must not cause a loss. A
// longer cut must cause a loss. The silence is longer than the cut by up to two heartbeats.
func TestOnlyACutBeyondTheLimitIsALoss(t *testing.T) {
	for n := 2; n <= 9; n++ {
		for _, tc := range []struct {
			cut  Span
			lost bool
		}{{3400 * Millisecond, false}, {4600 * Millisecond, true}} {
			w := started(t, n, uint64(n))
			w.run(w.now + Time(2*Second))
			w.isolate(1)
			w.run(w.now + Time(tc.cut))
			clear(w.cut)
			w.run(w.now + Time(10*Second))
			for r, x := range w.nodes {
				if e := x.firstFailure(); (e != nil) != tc.lost {
					t.Errorf("%d ranks, rank 1 cut off for %v: rank %d reports %v", n, tc.cut, r, e)
				}
			}
		}
	}
}

// One link of a rank breaks, and the rank is too busy to refute at once. The rank must not be lost,
// because its other links are up or the broken link comes up again.
func TestABusyRankWhoseLinkBreaksIsNotLost(t *testing.T) {
	for n := 3; n <= 9; n++ { // with two ranks, each rank is the only neighbour of the other
		w := started(t, n, uint64(n))
		w.run(w.now + Time(2*Second))
		w.pipes[pair(0, 1)].open = [2]bool{}
		w.nodes[1].busy = Second // each step of rank 1 comes a second late
		w.step(0, LinkDown{Rank: 1, Cause: "reset"})
		w.run(w.now + Time(10*Second))
		for r, x := range w.nodes {
			if e := x.firstFailure(); e != nil {
				t.Errorf("%d ranks: rank %d reports %v", n, r, e)
			}
		}
	}
}

// The limit on silence must grow with the delay that the peer's heartbeats report, up to
// maxSilence. A rank must count as silent at the limit, and not before.
func TestTheLimitGrowsWithThePeersDelay(t *testing.T) {
	for _, tc := range []struct{ delay, want Span }{
		{-Second, 4 * Second},
		{0, 4 * Second},
		{100 * Millisecond, 5600 * Millisecond},
		{Second, 20 * Second},
		{3500 * Millisecond, 60 * Second},
		{3600 * Second, 60 * Second},
		{1<<63 - 1, 60 * Second},
	} {
		s := New(Config{Me: 0, Size: 2, Joined: true, Heartbeat: 250 * Millisecond, Silence: 4 * Second})
		s.Step(0, Tick{})
		s.Step(0, LinkUp{1})
		s.Step(0, Received{1, Message{Kind: Heartbeat, Origin: 1, Age: tc.delay}})
		for now := Time(0); now < Time(tc.want); now += Time(50 * Millisecond) {
			s.Step(now, Tick{})
			if s.suspected(1) {
				t.Errorf("a delay of %v: suspected after %v, want %v", tc.delay, Span(now), tc.want)
				break
			}
		}
		s.Step(Time(tc.want), Tick{})
		if !s.suspected(1) {
			t.Errorf("a delay of %v: not suspected after %v", tc.delay, tc.want)
		}
	}
}

// A rank must report to its peers how late it runs, for one to two times the limit on silence.
func TestAHeartbeatHasTheDelayOfItsRank(t *testing.T) {
	s := New(Config{Me: 0, Size: 2, Joined: true, Heartbeat: 250 * Millisecond, Silence: 4 * Second})
	s.Step(0, Tick{})
	s.Step(0, LinkUp{1})
	ages := func(now Time) (got []Span) {
		for _, o := range s.Step(now, Tick{}) {
			if m, ok := o.(Send); ok && m.Msg.Kind == Heartbeat {
				got = append(got, m.Msg.Age)
			}
		}
		return got
	}
	if got := ages(Time(250 * Millisecond)); !slices.Equal(got, []Span{0}) {
		t.Errorf("in time: the heartbeats tell %v, want one that tells 0", got)
	}
	now := Time(1500 * Millisecond) // a second later than the time from Next
	if got := ages(now); !slices.Equal(got, []Span{Second}) {
		t.Errorf("a second late: the heartbeats tell %v, want one that tells 1000ms", got)
	}
	for end := now + Time(9*Second); now < end; {
		now += Time(s.Next())
		s.Step(now, Tick{})
	}
	if got := s.heartbeat().Age; got != 0 {
		t.Errorf("9 s later: a heartbeat tells %v, want 0", got)
	}
}

// While ranks start, no rank may be lost before it has been silent for the limit, whatever happens
// to its links.
func TestNoRankIsLostBeforeTheLimitWhileRanksStart(t *testing.T) {
	for seed := range uint64(50) {
		n := 2 + int(seed%8)
		w := newCluster(n+1, seed, true) // the last rank never starts, so no rank is ready
		for r := range n {
			w.start(r, Span(w.rng.IntN(1000))*Millisecond)
		}
		w.run(Time(1500 * Millisecond))
		w.kill(1)
		killed := w.now
		w.run(killed + Time(3700*Millisecond))
		for r, x := range w.nodes[:n] {
			if e := x.firstFailure(); e != nil && slices.Contains(peers(e), 1) {
				t.Errorf("seed %d: rank %d reports %v after %v", seed, r, e, Span(x.failures[0].at-killed))
			}
		}
		w.run(killed + Time(6*Second))
		for r, x := range w.nodes[:n] {
			if r != 1 && !x.state.ranks[1].gone() {
				t.Errorf("seed %d: rank %d does not report the killed rank after 6 s", seed, r)
			}
		}
	}
}
