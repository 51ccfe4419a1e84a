package collective

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/internal/teamtest"
	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
)

// In shared memory no messages move. What a run does there is read off what each
// rank's memory holds when it shows a flag, which flags it has seen before, and
// which elements it has folded.

// A signal is a flag that a rank shows, of one stage of a piece.
type signal struct {
	rank  int
	piece uint64
	act   p2p.TraceKind // ShowsReady or ShowsDone
}

// A stint is what one rank does up to, and with, showing a flag, or up to its end.
type stint struct {
	rank  int
	sees  []signal   // in their order
	shows *signal    // nil: none, its part is over
	puts  []spelling // what it has left in its slot, beside what lay there
	gets  []spelling // what it has left in its own buffers
	holds []spelling // what its slot holds
	step  int
}

// A scribe writes the stints of one rank down; it works on that rank's goroutine.
type scribe struct {
	rank   int
	s      *stand
	now    stint
	stints []*stint
	folds  map[spelling][2]spelling // what each result is the fold of
	slots  map[*byte][]spelling     // what the rank's slots held last
	own    []spelling               // what its buffers held last
}

// see is the rank's observer.
func (w *scribe) see(s p2p.TraceEvent) {
	switch s.Kind {
	case p2p.TraceSawReady:
		w.now.sees = append(w.now.sees, signal{s.Peer, s.Fragment.Number(), p2p.TraceSetReady})
	case p2p.TraceSawDone:
		w.now.sees = append(w.now.sees, signal{s.Peer, s.Fragment.Number(), p2p.TraceSetDone})
	case p2p.TraceSetReady, p2p.TraceSetDone:
		w.now.shows = &signal{w.rank, s.Fragment.Number(), s.Kind}
		w.now.holds = slices.Clone(tensor.Elements[spelling](s.Fragment.Slot(w.rank)))
		at := &s.Fragment.Slot(w.rank)[0]
		w.now.puts = fresh(w.slots[at], w.now.holds)
		w.slots[at] = w.now.holds
		w.close()
	}
}

// close ends a stint.
func (w *scribe) close() {
	held := w.s.held()
	w.now.gets = fresh(w.own, held)
	w.own = held
	ended := w.now
	ended.rank = w.rank
	w.stints = append(w.stints, &ended)
	w.now = stint{}
}

// held is all that lies in the caller's buffers.
func (s *stand) held() []spelling {
	return slices.Concat(tensor.Elements[spelling](s.all), tensor.Elements[spelling](s.other), tensor.Elements[spelling](s.own))
}

// fresh is what now has where before had something else, or nothing; each once.
func fresh(before, now []spelling) []spelling {
	var all []spelling
	for i, e := range now {
		if e != 0 && (i >= len(before) || before[i] != e) && !slices.Contains(all, e) {
			all = append(all, e)
		}
	}
	return all
}

// kernel spells, and writes down what is folded with what.
func (w *scribe) kernel(t testing.TB) reduce.Kernel {
	k, err := reduce.Func("spell", reduce.RankOrder, func(earlier, later spelling) spelling {
		w.folds[join(earlier, later)] = [2]spelling{earlier, later}
		return join(earlier, later)
	}).Kernel(tensor.Uint64)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// slotWidth is so many elements to a chunk that a vector of two is no small one, and
// that each is a piece for those who hand over a quarter of a slot.
const slotWidth = p2p.SlotSize / 4 / 8

// transcribe runs a on n ranks that share memory.
func transcribe(t testing.TB, a Algorithm, n, root int) []*scribe {
	t.Helper()
	tm := teamtest.New(t, n, 0)
	scribes := make([]*scribe, n)
	for rank := range scribes {
		w := &scribe{rank: rank, folds: map[spelling][2]spelling{}, slots: map[*byte][]spelling{}}
		w.s = newStand(n, rank, slotWidth, w.kernel(t))
		if a.isScan() { // the whole vector is treated alike
			for i, e := range tensor.Elements[spelling](w.s.all) {
				tensor.Elements[spelling](w.s.all)[i] = spell(0, ranksOf(e)[0])
			}
		}
		w.own = w.s.held()
		tm.Ranks[rank].Group.SetTracer(w.see)
		scribes[rank] = w
	}
	tm.Run(t, func(ctx context.Context, r *p2p.Round) error {
		w := scribes[r.Rank()]
		err := w.s.perform(ctx, r, a, root)
		w.close()
		return err
	})
	return scribes
}

// inSteps gives every stint the first step in which it could be: after the rank's
// earlier ones that do something, and after those that show what it sees. It returns
// the stints that do something, and the number of steps.
func inSteps(t testing.TB, a Algorithm, scribes []*scribe) (all []*stint, steps int) {
	t.Helper()
	shown := map[signal]int{} // the step of each flag
	next := make([]int, len(scribes))
	free := make([]int, len(scribes)) // each rank's first step that is free
	for progress := true; progress; {
		progress = false
		for rank, w := range scribes {
			for next[rank] < len(w.stints) && allShown(shown, w.stints[next[rank]].sees) {
				x := w.stints[next[rank]]
				next[rank]++
				progress = true
				x.step = free[rank]
				for _, f := range x.sees {
					x.step = max(x.step, shown[f]+1)
				}
				after := x.step - 1 // what does nothing takes no time
				if w.text(a, x, scribes) != "" {
					all = append(all, x)
					after = x.step
					steps = max(steps, x.step+1)
				}
				free[rank] = after + 1
				if x.shows != nil {
					shown[*x.shows] = after
				}
			}
		}
	}
	for rank, w := range scribes {
		if next[rank] < len(w.stints) {
			t.Fatalf("rank %d saw %v, which nobody has shown", rank, w.stints[next[rank]].sees)
		}
	}
	return all, steps
}

func allShown(shown map[signal]int, flags []signal) bool {
	return !slices.ContainsFunc(flags, func(f signal) bool {
		_, ok := shown[f]
		return !ok
	})
}

// text is what a drawing shows of a stint.
func (w *scribe) text(a Algorithm, x *stint, all []*scribe) string {
	if a.Verb() == VerbBarrier {
		return x.flags()
	}
	var does []string
	var brought, folded []string
	for _, e := range x.puts {
		if _, ok := w.folds[e]; !ok {
			brought = append(brought, label(a, e))
		}
	}
	if len(brought) > 0 {
		does = append(does, fmt.Sprintf("%s → slot %d", strings.Join(brought, " "), w.rank))
	}
	var takes []spelling
	for _, e := range slices.Concat(x.gets, fresh(x.gets, x.puts)) {
		_, isFold := w.folds[e]
		switch text := w.expression(e); {
		case isFold && w.before(x, e): // it takes what it has folded itself
			takes = append(takes, e)
		case isFold && !slices.Contains(folded, text):
			folded = append(folded, text)
		case !isFold && slices.Contains(x.gets, e):
			takes = append(takes, e)
		}
	}
	if len(folded) > 0 {
		fold := strings.Join(folded, " ")
		if slices.ContainsFunc(x.puts, func(e spelling) bool { _, ok := w.folds[e]; return ok }) {
			fold += fmt.Sprintf(" → slot %d", w.rank)
		}
		does = append(does, fold)
	}
	return strings.Join(append(does, w.taken(a, x, takes, all)...), ", ")
}

// before reports whether the rank had e in an earlier stint than x.
func (w *scribe) before(x *stint, e spelling) bool {
	for _, earlier := range w.stints {
		if earlier == x {
			break
		}
		if slices.Contains(earlier.gets, e) || slices.Contains(earlier.puts, e) {
			return true
		}
	}
	return false
}

// taken says from whose slots what came that the rank has neither folded nor had.
func (w *scribe) taken(a Algorithm, x *stint, what []spelling, all []*scribe) []string {
	var texts []string
	for rank, other := range all {
		var labels []string
		for _, e := range what {
			if other.offered(e, x, rank == w.rank) {
				labels = append(labels, label(a, e))
			}
		}
		if len(labels) > 0 {
			texts = append(texts, fmt.Sprintf("%s ← slot %d", strings.Join(labels, " "), rank))
		}
	}
	return texts
}

// offered reports whether the rank had e in a slot whose flag x has seen; a flag of
// its own need not be seen, but shown before.
func (w *scribe) offered(e spelling, x *stint, own bool) bool {
	return slices.ContainsFunc(w.stints, func(y *stint) bool {
		if y.shows == nil || !slices.Contains(y.holds, e) {
			return false
		}
		return slices.Contains(x.sees, *y.shows) || own && slices.Index(w.stints, y) < slices.Index(w.stints, x)
	})
}

// flags is a stint of an operation that moves nothing.
func (x *stint) flags() string {
	var texts []string
	for _, f := range x.sees {
		if f.rank != x.rank {
			texts = append(texts, fmt.Sprintf("sees flag %d", f.rank))
		}
	}
	if x.shows != nil {
		texts = append(texts, fmt.Sprintf("shows flag %d", x.rank))
	}
	return strings.Join(texts, ", ")
}

// label is what a drawing calls an element: A0 is rank 0's share of chunk A. What
// all ranks have alike, or is finished, has no number.
func label(a Algorithm, e spelling) string {
	chunk := string(rune('A' + chunkOf(e)))
	reduces := a.entry().order != 0
	swaps := a.Verb() == VerbAllToAll
	if ranks := ranksOf(e); len(ranks) == 1 && (reduces || swaps) {
		return chunk + digits(ranks)
	}
	return chunk
}

// expression is e as it was folded: "op(A0, A1)".
func (w *scribe) expression(e spelling) string {
	parts, ok := w.folds[e]
	if !ok {
		return string(rune('A'+chunkOf(e))) + digits(ranksOf(e))
	}
	return fmt.Sprintf("op(%s, %s)", w.expression(parts[0]), w.expression(parts[1]))
}

// redrawSlots is the picture of a run in shared memory: a row for each rank, a
// column for each step.
func redrawSlots(t testing.TB, a Algorithm, n, root int) string {
	t.Helper()
	scribes := transcribe(t, a, n, root)
	all, steps := inSteps(t, a, scribes)
	lines := [][]string{append([]string{""}, titles(steps)...)}
	for rank := range n {
		lines = append(lines, append([]string{fmt.Sprintf("rank %d", rank)}, make([]string, steps)...))
	}
	for _, x := range all {
		lines[1+x.rank][1+x.step] = scribes[x.rank].text(a, x, scribes)
	}
	return aligned(lines)
}

// What overlaps is copied as by the built-in copy, pieces or not.
func TestAChunkThatOverlapsItsPlaceIsCopiedWhole(t *testing.T) {
	const far = 100
	buf := make([]byte, 2*cachedBlock+far)
	for i := range buf {
		buf[i] = byte(i * 31 >> 3)
	}
	want := slices.Clone(buf[:2*cachedBlock])
	copyCached(buf[far:], buf[:2*cachedBlock])
	if !bytes.Equal(buf[far:], want) {
		t.Error("a chunk was overwritten before it had been copied")
	}
}
