package collective

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/internal/test/teamtest"
	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
)

// A run in shared memory sends no messages. The recorder derives the steps of the run from three
// observations of each rank: the content of the rank's memory when it sets a flag, the flags that
// the rank has seen before, and the elements that it has folded.

// A signal is a flag that a rank sets for one stage of a fragment.
type signal struct {
	rank  int
	piece uint64
	act   p2p.TraceKind // TraceSetReady or TraceSetDone
}

// A stage is the work of one rank up to the moment when it sets a flag, or up to its end.
type stage struct {
	rank  int
	sees  []signal     // in the order in which the rank saw them
	shows *signal      // the flag at the end of the stage; nil for the last stage
	puts  []provenance // elements that the rank has written into its slot
	gets  []provenance // elements that the rank has written into its own buffers
	holds []provenance // elements in the rank's slot at the end of the stage
	step  int
}

// A slotRecorder records the stages of one rank, on that rank's goroutine.
type slotRecorder struct {
	rank    int
	fixture *fixture
	now     stage
	stages  []*stage
	folds   map[provenance][2]provenance // the two operands of each result
	slots   map[*byte][]provenance       // the rank's slots at the end of the last stage
	own     []provenance                 // the rank's buffers at the end of the last stage
}

// observe is the rank's trace hook.
func (w *slotRecorder) observe(s p2p.TraceEvent) {
	switch s.Kind {
	case p2p.TraceSawReady:
		w.now.sees = append(w.now.sees, signal{s.Peer, s.Fragment.Number(), p2p.TraceSetReady})
	case p2p.TraceSawDone:
		w.now.sees = append(w.now.sees, signal{s.Peer, s.Fragment.Number(), p2p.TraceSetDone})
	case p2p.TraceSetReady, p2p.TraceSetDone:
		w.now.shows = &signal{w.rank, s.Fragment.Number(), s.Kind}
		w.now.holds = slices.Clone(tensor.Elements[provenance](s.Fragment.Slot(w.rank)))
		at := &s.Fragment.Slot(w.rank)[0]
		w.now.puts = fresh(w.slots[at], w.now.holds)
		w.slots[at] = w.now.holds
		w.close()
	}
}

// close ends a stage.
func (w *slotRecorder) close() {
	held := w.fixture.held()
	w.now.gets = fresh(w.own, held)
	w.own = held
	ended := w.now
	ended.rank = w.rank
	w.stages = append(w.stages, &ended)
	w.now = stage{}
}

// held returns all elements in the caller's buffers.
func (s *fixture) held() []provenance {
	return slices.Concat(tensor.Elements[provenance](s.all), tensor.Elements[provenance](s.other), tensor.Elements[provenance](s.own))
}

// fresh compares two lists of elements by position. It returns each new element that differs, once.
func fresh(before, now []provenance) []provenance {
	var all []provenance
	for i, e := range now {
		if e != 0 && (i >= len(before) || before[i] != e) && !slices.Contains(all, e) {
			all = append(all, e)
		}
	}
	return all
}

// kernel returns an operator that joins provenances, and records the two operands of each result.
func (w *slotRecorder) kernel(t testing.TB) reduce.Kernel {
	k, err := reduce.Func("spell", reduce.RankOrder, func(earlier, later provenance) provenance {
		w.folds[join(earlier, later)] = [2]provenance{earlier, later}
		return join(earlier, later)
	}).Kernel(tensor.Uint64)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// slotWidth is the number of elements per chunk. With it, a vector of two chunks is too long for a
// small fragment. For algorithms that hand over a quarter of a slot at a time, each chunk is one
// fragment.
const slotWidth = p2p.SlotSize / 4 / 8

// recordSlots runs an algorithm on n ranks that share memory.
func recordSlots(t testing.TB, a Algorithm, n, root int) []*slotRecorder {
	t.Helper()
	tm := teamtest.New(t, n, 0)
	recorders := make([]*slotRecorder, n)
	for rank := range recorders {
		w := &slotRecorder{rank: rank, folds: map[provenance][2]provenance{}, slots: map[*byte][]provenance{}}
		w.fixture = newFixture(n, rank, slotWidth, w.kernel(t))
		if a.isScan() { // a scan handles all chunks in the same way
			for i, e := range tensor.Elements[provenance](w.fixture.all) {
				tensor.Elements[provenance](w.fixture.all)[i] = newProvenance(0, ranksOf(e)[0])
			}
		}
		w.own = w.fixture.held()
		tm.Ranks[rank].Group.SetTracer(w.observe)
		recorders[rank] = w
	}
	tm.Run(t, func(ctx context.Context, r *p2p.Round) error {
		w := recorders[r.Rank()]
		err := w.fixture.call(ctx, r, a, root)
		w.close()
		return err
	})
	return recorders
}

// inSteps gives every stage the first step in which it could run. A stage runs after the earlier
// stages of its rank, and after the stages that set the flags that it sees. A stage that moves
// nothing takes no step. inSteps returns the other stages, and the number of steps.
func inSteps(t testing.TB, a Algorithm, recorders []*slotRecorder) (all []*stage, steps int) {
	t.Helper()
	shown := map[signal]int{} // the step of each flag
	next := make([]int, len(recorders))
	free := make([]int, len(recorders)) // the first free step of each rank
	for progress := true; progress; {
		progress = false
		for rank, w := range recorders {
			for next[rank] < len(w.stages) && allShown(shown, w.stages[next[rank]].sees) {
				x := w.stages[next[rank]]
				next[rank]++
				progress = true
				x.step = free[rank]
				for _, f := range x.sees {
					x.step = max(x.step, shown[f]+1)
				}
				after := x.step - 1 // a stage that moves nothing takes no step
				if w.text(a, x, recorders) != "" {
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
	for rank, w := range recorders {
		if next[rank] < len(w.stages) {
			t.Fatalf("rank %d saw %v, which nobody has shown", rank, w.stages[next[rank]].sees)
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

// text returns a stage as a drawing shows it.
func (w *slotRecorder) text(a Algorithm, x *stage, all []*slotRecorder) string {
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
	var reads []provenance
	for _, e := range slices.Concat(x.gets, fresh(x.gets, x.puts)) {
		_, isFold := w.folds[e]
		switch text := w.expression(e); {
		case isFold && w.before(x, e): // the rank copies a result that it has folded itself
			reads = append(reads, e)
		case isFold && !slices.Contains(folded, text):
			folded = append(folded, text)
		case !isFold && slices.Contains(x.gets, e):
			reads = append(reads, e)
		}
	}
	if len(folded) > 0 {
		fold := strings.Join(folded, " ")
		if slices.ContainsFunc(x.puts, func(e provenance) bool { _, ok := w.folds[e]; return ok }) {
			fold += fmt.Sprintf(" → slot %d", w.rank)
		}
		does = append(does, fold)
	}
	return strings.Join(append(does, w.readFrom(a, x, reads, all)...), ", ")
}

// before reports whether the rank had e in a stage before x.
func (w *slotRecorder) before(x *stage, e provenance) bool {
	for _, earlier := range w.stages {
		if earlier == x {
			break
		}
		if slices.Contains(earlier.gets, e) || slices.Contains(earlier.puts, e) {
			return true
		}
	}
	return false
}

// readFrom returns a text such as "A ← slot 1" for each rank from whose slot this rank has read
// some of the given elements.
func (w *slotRecorder) readFrom(a Algorithm, x *stage, what []provenance, all []*slotRecorder) []string {
	var texts []string
	for rank, other := range all {
		var labels []string
		for _, e := range what {
			if other.visibleTo(e, x, rank == w.rank) {
				labels = append(labels, label(a, e))
			}
		}
		if len(labels) > 0 {
			texts = append(texts, fmt.Sprintf("%s ← slot %d", strings.Join(labels, " "), rank))
		}
	}
	return texts
}

// visibleTo reports whether the rank had e in a slot whose flag stage x has seen. If own is true, x
// is a stage of this rank, and flags that the rank has set before x count, too.
func (w *slotRecorder) visibleTo(e provenance, x *stage, own bool) bool {
	return slices.ContainsFunc(w.stages, func(y *stage) bool {
		if y.shows == nil || !slices.Contains(y.holds, e) {
			return false
		}
		return slices.Contains(x.sees, *y.shows) || own && slices.Index(w.stages, y) < slices.Index(w.stages, x)
	})
}

// flags returns the text of a stage of an operation that moves no data.
func (x *stage) flags() string {
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

// label returns a drawing's name of an element: A0 is rank 0's share of chunk A. An element that is
// equal on all ranks, or whose fold is finished, has no number.
func label(a Algorithm, e provenance) string {
	chunk := string(rune('A' + chunkOf(e)))
	reduces := a.entry().order != 0
	exchanges := a.Verb() == VerbAllToAll
	if ranks := ranksOf(e); len(ranks) == 1 && (reduces || exchanges) {
		return chunk + digits(ranks)
	}
	return chunk
}

// expression returns the fold that has produced e, such as "op(A0, A1)".
func (w *slotRecorder) expression(e provenance) string {
	parts, ok := w.folds[e]
	if !ok {
		return string(rune('A'+chunkOf(e))) + digits(ranksOf(e))
	}
	return fmt.Sprintf("op(%s, %s)", w.expression(parts[0]), w.expression(parts[1]))
}

// redrawSlots returns the drawing of a run in shared memory: a row for each rank, and a column
// for each step.
func redrawSlots(t testing.TB, a Algorithm, n, root int) string {
	t.Helper()
	recorders := recordSlots(t, a, n, root)
	all, steps := inSteps(t, a, recorders)
	lines := [][]string{append([]string{""}, titles(steps)...)}
	for rank := range n {
		lines = append(lines, append([]string{fmt.Sprintf("rank %d", rank)}, make([]string, steps)...))
	}
	for _, x := range all {
		lines[1+x.rank][1+x.step] = recorders[x.rank].text(a, x, recorders)
	}
	return aligned(lines)
}

// A copy between overlapping slices must have the same result as the built-in copy, even if it is
// done in blocks.
func TestAnOverlappingChunkIsCopiedWhole(t *testing.T) {
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
