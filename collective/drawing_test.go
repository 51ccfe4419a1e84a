package collective

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tutti-go/tutti/internal/test/teamtest"
	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
)

// A provenance is an element that records its own history. The top byte is its chunk. The lower
// bytes have one hexadecimal digit, rank + 1, for each share folded into it, in the order of the
// fold.
type provenance = uint64

const chunkShift = 56

func newProvenance(chunk, rank int) provenance {
	return provenance(chunk)<<chunkShift | provenance(rank+1)
}

func chunkOf(s provenance) int { return int(s >> chunkShift) }

// ranksOf returns the ranks whose shares are folded into s, in the order of the fold.
func ranksOf(s provenance) []int {
	var ranks []int
	for s &= 1<<chunkShift - 1; s != 0; s >>= 4 {
		ranks = append(ranks, int(s&15)-1)
	}
	slices.Reverse(ranks)
	return ranks
}

// join returns a provenance with the ranks of earlier, followed by the ranks of later.
func join(earlier, later provenance) provenance {
	digits := later & (1<<chunkShift - 1)
	kept := earlier & (1<<chunkShift - 1)
	for d := digits; d != 0; d >>= 4 {
		kept <<= 4
	}
	return earlier>>chunkShift<<chunkShift | kept | digits
}

// provenanceKernel returns the kernel of an operator that calls join. The test chooses the
// operator's Order, because the drawing must show the order in which an algorithm folds.
func provenanceKernel(t testing.TB, order reduce.Order) reduce.Kernel {
	k, err := reduce.Func("spell", order, join).Kernel(tensor.Uint64)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// A message is a message of a recorded run.
type message struct {
	from, to int
	bytes    int
	elems    []provenance
	after    []receipt // the messages that the sender had received before; only for empty messages
	step     int
}

// A receipt identifies a received message: the nth message from the rank from.
type receipt struct{ from, nth int }

// record runs an algorithm with the given number of elements per chunk and the given segment size
// in bytes; 0 means one segment per message. It returns all messages of the run. Messages of one
// sender are in the order sent.
func record(t testing.TB, tm *teamtest.Team, seen func() []sentFrame, a Algorithm, root, width, segment int) []*message {
	t.Helper()
	k := provenanceKernel(t, reduce.Commutative)
	tm.Run(t, func(ctx context.Context, r *p2p.Round) error {
		r.SetSegment(segment)
		return newFixture(r.Size(), r.Rank(), width, k).call(ctx, r, a, root)
	})
	var all []*message
	for _, s := range seen() {
		// The copy is aligned, whatever the frame's body was.
		elems := make([]provenance, len(s.body)/8)
		copy(tensor.Bytes(elems), s.body)
		all = append(all, &message{from: s.from, to: s.to, bytes: len(s.body), elems: elems})
	}
	return all
}

// recordEmpty is like record, for an algorithm with empty messages. An empty message does not show
// for which messages its sender waited. So recordEmpty records the messages that each sender had
// received before.
func recordEmpty(t testing.TB, tm *teamtest.Team, a Algorithm) []*message {
	t.Helper()
	sent := make([][]*message, len(tm.Ranks))
	for rank, m := range tm.Ranks {
		var had []receipt
		times := map[int]int{}
		m.Group.SetTracer(func(s p2p.TraceEvent) {
			switch s.Kind {
			case p2p.TraceSend:
				sent[rank] = append(sent[rank], &message{from: rank, to: s.Peer, after: slices.Clone(had)})
			case p2p.TraceRecv:
				had = append(had, receipt{s.Peer, times[s.Peer]})
				times[s.Peer]++
			}
		})
		defer m.Group.SetTracer(nil)
	}
	tm.Run(t, func(ctx context.Context, r *p2p.Round) error { return Barrier(ctx, r, a) })
	return slices.Concat(sent...)
}

// A fixture holds one rank's buffers in a recorded run, for any collective. On entry the elements
// are provenances of the rank's own share.
type fixture struct {
	all, other []byte // every chunk
	own        []byte // this rank's chunk
	counts     []int
	k          reduce.Kernel
}

func newFixture(n, me, width int, k reduce.Kernel) *fixture {
	all := make([]provenance, n*width)
	for i := range all {
		all[i] = newProvenance(i/width, me)
	}
	s := &fixture{all: tensor.Bytes(all), other: make([]byte, 8*n*width), own: make([]byte, 8*width), k: k}
	copy(s.own, s.all[len(s.own)*me:])
	s.counts = slices.Repeat([]int{width}, n)
	return s
}

// call makes this rank's call of the algorithm.
func (s *fixture) call(ctx context.Context, r *p2p.Round, a Algorithm, root int) error {
	switch a.Verb() {
	case VerbAllReduce:
		return AllReduce(ctx, r, a, s.all, s.all, s.k)
	case VerbReduce:
		return Reduce(ctx, r, a, root, s.other, s.all, s.k)
	case VerbBroadcast:
		return Broadcast(ctx, r, a, root, s.all)
	case VerbAllGather:
		return AllGather(ctx, r, a, s.other, s.own)
	case VerbAllGatherV:
		return AllGatherV(ctx, r, a, s.other, s.own, s.counts, 8)
	case VerbGather:
		return Gather(ctx, r, a, root, s.other, s.own)
	case VerbGatherV:
		return GatherV(ctx, r, a, root, s.other, s.own, s.counts, 8)
	case VerbScatter:
		return Scatter(ctx, r, a, root, s.own, s.all)
	case VerbScatterV:
		return ScatterV(ctx, r, a, root, s.own, s.all, s.counts, 8)
	case VerbReduceScatter:
		return ReduceScatter(ctx, r, a, s.own, s.all, s.k)
	case VerbReduceScatterV:
		return ReduceScatterV(ctx, r, a, s.own, s.all, s.counts, s.k)
	case VerbAllToAll:
		return AllToAll(ctx, r, a, s.other, s.all)
	case VerbAllToAllV:
		return AllToAllV(ctx, r, a, s.other, s.all, s.counts, s.counts, 8)
	case VerbBarrier:
		return Barrier(ctx, r, a)
	case VerbScan:
		return Scan(ctx, r, a, s.all, s.all, s.k)
	case VerbExScan:
		return ExScan(ctx, r, a, s.all, s.all, s.k)
	}
	return fmt.Errorf("no call for %v", a)
}

// schedule gives every message the first step in which it could move. A rank sends one message and
// receives one message per step. A message moves after all messages whose contents it contains, and
// after the earlier messages of its sender. schedule returns the number of steps.
func schedule(t testing.TB, all []*message) int {
	t.Helper()
	left := slices.Clone(all)
	slices.SortStableFunc(left, func(a, b *message) int { return a.from - b.from })
	var done []*message
	for step := 0; ; step++ {
		if len(left) == 0 {
			return step
		}
		sending, receiving := map[int]bool{}, map[int]bool{}
		var now, later []*message
		for _, m := range left {
			if sending[m.from] || receiving[m.to] || !ready(m, done, left) {
				later = append(later, m)
				sending[m.from] = true // later messages of this sender wait, too
				continue
			}
			m.step = step
			sending[m.from], receiving[m.to] = true, true
			now = append(now, m)
		}
		if len(now) == 0 {
			t.Fatalf("%d messages contain what never arrived", len(left))
		}
		done, left = append(done, now...), later
	}
}

// ready reports whether everything that m contains has arrived at its sender.
func ready(m *message, done, left []*message) bool {
	for _, other := range left {
		if other != m && other.to == m.from && contains(m, other, done) {
			return false
		}
	}
	for _, had := range m.after {
		from := 0
		for _, other := range done {
			if other.from == had.from && other.to == m.from {
				from++
			}
		}
		if from <= had.nth {
			return false
		}
	}
	return true
}

// contains reports whether m has content that its sender received in another message, called part
// here, and did not have before.
func contains(m, part *message, done []*message) bool {
	for _, e := range m.elems {
		var had []int
		for _, p := range part.elems {
			if chunkOf(e) != chunkOf(p) || !subset(ranksOf(p), ranksOf(e)) {
				continue
			}
			if had == nil {
				had = append(arrived(e, m.from, done), m.from)
			}
			if !subset(ranksOf(p), had) {
				return true
			}
		}
	}
	return false
}

// arrived returns those ranks in e whose shares have arrived at the given rank.
func arrived(e provenance, at int, done []*message) []int {
	var ranks []int
	for _, other := range done {
		if other.to != at {
			continue
		}
		for _, p := range other.elems {
			if chunkOf(e) == chunkOf(p) && subset(ranksOf(p), ranksOf(e)) {
				ranks = append(ranks, ranksOf(p)...)
			}
		}
	}
	return ranks
}

func subset(some, all []int) bool {
	return !slices.ContainsFunc(some, func(x int) bool { return !slices.Contains(all, x) })
}

// A view describes the form of a drawing: whether its rows are chunks or ranks, and what is written
// before an arrow. Before an arrow there can be the ranks whose shares are folded, the chunks in
// the message, or both, with the ranks in brackets.
type view struct{ byChunk, shares, chunks bool }

// viewOf returns the view for an algorithm's drawing. If several views are possible, it returns the
// view that the drawing in the header uses.
func viewOf(a Algorithm, image string) view {
	l := view{byChunk: strings.Contains(image, "chunk")}
	brackets, carries := strings.Contains(image, "("), regexp.MustCompile(`\d → `).MatchString(image)
	switch a.Verb() {
	case VerbAllReduce, VerbReduce, VerbReduceScatter, VerbReduceScatterV, VerbScan, VerbExScan:
		l.shares, l.chunks = true, brackets
	case VerbAllToAll, VerbAllToAllV:
		l.shares, l.chunks = brackets, brackets
	case VerbBroadcast:
		l.chunks = carries
	case VerbBarrier:
		// The drawing has nothing before an arrow.
	default:
		l.chunks = true
	}
	return l
}

// cell returns a message as its row shows it.
func (l view) cell(m *message) string {
	switch {
	case l.byChunk:
		return fmt.Sprintf("%d → %d", m.from, m.to)
	case l.shares && l.chunks:
		return fmt.Sprintf("%s → %d", m.contents(), m.to)
	case l.shares:
		return fmt.Sprintf("%s → %d", digits(ranksOf(m.elems[0])), m.to)
	case l.chunks:
		var carried []int
		for _, e := range m.elems {
			carried = append(carried, chunkOf(e))
		}
		return fmt.Sprintf("%s → %d", digits(slices.Compact(carried)), m.to)
	}
	return fmt.Sprintf("→ %d", m.to)
}

// contents returns the chunks that m carries. Each run of chunks with shares of the same ranks is
// followed by these ranks in brackets: "01(23)".
func (m *message) contents() string {
	var b strings.Builder
	for i, e := range m.elems {
		if i == 0 || chunkOf(e) != chunkOf(m.elems[i-1]) {
			fmt.Fprint(&b, chunkOf(e))
		}
		if last := i+1 == len(m.elems); last || !slices.Equal(ranksOf(e), ranksOf(m.elems[i+1])) {
			fmt.Fprintf(&b, "(%s)", digits(ranksOf(e)))
		}
	}
	return b.String()
}

func (l view) row(m *message) (string, int) {
	if l.byChunk {
		return "chunk", chunkOf(m.elems[0])
	}
	return "rank", m.from
}

func digits(numbers []int) string {
	var b strings.Builder
	for _, n := range numbers {
		b.WriteString(strconv.Itoa(n))
	}
	return b.String()
}

// draw returns the drawing of scheduled messages: a row for each rank that sends, or for each
// chunk, and a column for each step.
func draw(l view, all []*message, steps int) string {
	cells := map[int][]string{}
	var word string
	for _, m := range all {
		var row int
		word, row = l.row(m)
		if cells[row] == nil {
			cells[row] = make([]string, steps)
		}
		cells[row][m.step] = l.cell(m)
	}
	lines := [][]string{append([]string{""}, titles(steps)...)}
	for row := range 10 {
		if cells[row] != nil {
			lines = append(lines, append([]string{fmt.Sprintf("%s %d", word, row)}, cells[row]...))
		}
	}
	return aligned(lines)
}

func titles(steps int) []string {
	var all []string
	for s := range steps {
		all = append(all, fmt.Sprintf("step %d", s))
	}
	return all
}

// aligned formats columns with three spaces between them.
func aligned(lines [][]string) string {
	var b strings.Builder
	for _, line := range lines {
		var text strings.Builder
		for col, cell := range line {
			width := 0
			for _, other := range lines {
				width = max(width, utf8.RuneCountInString(other[col]))
			}
			text.WriteString(cell + strings.Repeat(" ", width-utf8.RuneCountInString(cell)+3))
		}
		b.WriteString(strings.TrimRight(text.String(), " ") + "\n")
	}
	return b.String()
}

// redraw runs an algorithm and returns the drawing of the run.
func (h header) redraw(t testing.TB, a Algorithm) string {
	t.Helper()
	if a.NeedsShared() {
		return redrawSlots(t, a, h.ranks, h.root)
	}
	// Without shared memory, messages within hosts are recorded, too.
	tm, seen := newRecordedTeamAt(t, onHosts(h.ranks, h.hosts), h.hosts == 1)
	var all []*message
	switch {
	case a.Verb() == VerbBarrier:
		all = recordEmpty(t, tm, a)
	case h.cuts > 0:
		all = record(t, tm, seen, a, h.root, 1, 8*h.ranks/h.cuts)
	default:
		all = record(t, tm, seen, a, h.root, 1, 0)
	}
	steps := schedule(t, all)
	return draw(viewOf(a, h.drawing), all, steps)
}

func TestDrawingsShowWhatMoves(t *testing.T) {
	for _, verb := range Verbs() {
		for _, a := range Algorithms(verb) {
			t.Run(a.String(), func(t *testing.T) {
				h := readHeader(t, a)
				if got := h.redraw(t, a); got != h.drawing {
					t.Errorf("a run gives\n%s\n%s draws\n%s", got, source(a), h.drawing)
				}
			})
		}
	}
}

func TestAWrongDrawingIsNoticed(t *testing.T) {
	for _, c := range []struct {
		a              Algorithm
		name, old, new string
	}{
		{find(t, VerbReduce, "binomial"), "another receiver", "1 → 0", "1 → 2"},
		{find(t, VerbReduce, "binomial"), "another order of folding", "23 →", "32 →"},
		{find(t, VerbReduce, "binomial"), "a step too early", "         23 → 0", "23 → 0"},
		{find(t, VerbReduce, "binomial"), "a rank too few", "rank 5   5 → 4\n", ""},
		{find(t, VerbBarrier, hierarchical), "a step too early", "         → 2 ", "→ 2         "},
		{find(t, VerbReduce, shared), "another slot", "B ← slot 1", "B ← slot 0"},
		{find(t, VerbReduce, shared), "another order of folding", "op(A0, A1)", "op(A1, A0)"},
		{find(t, VerbBroadcast, shared), "a step too early", "         A ← slot 0", "A ← slot 0         "},
	} {
		right := readHeader(t, c.a)
		run := right.redraw(t, c.a)
		if run != right.drawing {
			t.Fatalf("%v: the right drawing is refused", c.a)
		}
		wrong := strings.Replace(right.drawing, c.old, c.new, 1)
		if wrong == right.drawing {
			t.Errorf("%v: %s: %q is not in the drawing", c.a, c.name, c.old)
		}
		if wrong == run {
			t.Errorf("%v: %s is not noticed", c.a, c.name)
		}
	}
}

// A copy that does not wait for its slot must be drawn differently from a copy that waits.
func TestADrawingOfSlotsShowsWhatWaits(t *testing.T) {
	a := find(t, VerbBroadcast, shared)
	recorders := recordSlots(t, a, 2, 0) // the vector has one fragment for each rank
	if _, steps := inSteps(t, a, recorders); steps != 3 {
		t.Errorf("two pieces take %d steps, want 3", steps)
	}
	for _, x := range recorders[1].stages {
		x.sees = nil
	}
	if _, steps := inSteps(t, a, recorders); steps != 2 {
		t.Errorf("two pieces that nobody waits for take %d steps, want 2", steps)
	}
}
