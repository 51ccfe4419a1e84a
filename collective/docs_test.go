package collective

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/internal/test/golden"
	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// docsRanks holds the numbers of ranks for which docs/algorithms.md gives the costs.
var docsRanks = []int{2, 4, 8, 64}

func TestTheAlgorithmsPageIsUpToDate(t *testing.T) {
	golden.Compare(t, filepath.Join("..", "docs", "algorithms.md"), page(t))
}

func page(t testing.TB) string {
	var b strings.Builder
	b.WriteString(`# Algorithms

<!-- Generated from package collective by: go generate ./collective -->

A table chooses the algorithm of each collective operation by the bytes of the whole vector, the number of
ranks and the wire. Rank 0 sends its table to all ranks, so all choose alike. [Tuning](tuning.md) says how to
measure a table and how to force an algorithm: ` + "`TUTTI_ALGORITHM=allreduce:ring,broadcast:binomial`" + ` on rank 0.

In the costs, α is the time to start a message, β to move a byte and γ to fold a byte, for n ranks and m bytes.
A rank can send and receive at the same time. The columns give the cost for 10⁶ bytes in segments of 240 KiB, so
s = 5 where segments count. Two families differ:

- A hierarchical algorithm's cost is what moves between h hosts; the columns take h = n.
- A shared algorithm's cost is for one slot of 64 KiB. On two ranks, broadcast moves it in 4 fragments, each with
  an α of its own.

Tests compare the steps and the bytes with those of recorded runs. Each algorithm's file begins with a drawing of
what moves, and tests redraw it from a run.

`)
	for _, verb := range Verbs() {
		fmt.Fprintf(&b, "## %v\n\n", verb)
		section(t, &b, verb)
	}
	b.WriteString("## The default table\n\nA call follows the first line that covers it and whose algorithm supports its operator. Where there is\nnone, the first algorithm listed above runs. Lines of shared algorithms apply where all ranks share memory, and\nthose of hierarchical ones on several hosts with several ranks on one.\n\n")
	b.WriteString("| collective | algorithm | segment | up to bytes | ranks | wire |\n|---|---|---|---|---|---|\n")
	for _, u := range DefaultRules() {
		fmt.Fprintf(&b, "| %v | %s | %s | %s | %s | %s |\n",
			u.Algorithm.Verb(), u.Algorithm.Name(), cmp.Or(strings.TrimPrefix(limit(uint64(u.Segment)), "any"), "–"), limit(u.MaxBytes), between(u.MinRanks, u.MaxRanks), cmp.Or(u.Wire, "any"))
	}
	return b.String()
}

func section(t testing.TB, b *strings.Builder, verb Verb) {
	b.WriteString("| algorithm | operators | cost |")
	for _, n := range docsRanks {
		fmt.Fprintf(b, " n = %d |", n)
	}
	b.WriteString("\n|---|---|---|" + strings.Repeat("---|", len(docsRanks)) + "\n")
	for _, a := range Algorithms(verb) {
		fmt.Fprintf(b, "| [%s](../collective/%s) | %s | %s |", a.Name(), source(a), operators(a), a.entry().costText)
		for _, n := range docsRanks {
			fmt.Fprintf(b, " %s |", worked(a, n))
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
	if folds := foldsOf(t, verb); folds != "" {
		b.WriteString(folds + "\n")
	}
}

func operators(a Algorithm) string {
	switch a.entry().order {
	case reduce.Commutative:
		return "commutative"
	case reduce.RankOrder:
		return "any"
	}
	return "–"
}

// worked returns the cost on n ranks in numbers. For an algorithm in shared memory, it returns the
// cost for one slot.
func worked(a Algorithm, n int) string {
	m := 1e6
	if a.NeedsShared() {
		m = p2p.SlotSize
	}
	alpha, beta, gamma := a.Cost(n, int(m), p2p.DefaultSegment)
	terms := []string{figure(alpha, "α")}
	if beta != 0 {
		terms = append(terms, figure(beta/m, "mβ"))
	}
	if gamma != 0 {
		terms = append(terms, figure(gamma/m, "mγ"))
	}
	return strings.Join(terms, " + ")
}

func figure(x float64, unit string) string {
	text := strings.TrimRight(strings.TrimRight(fmt.Sprintf("%.2f", x), "0"), ".")
	if text == "1" {
		text = ""
	}
	return text + unit
}

func limit(n uint64) string {
	switch {
	case n == 0:
		return "any"
	case n%1024 == 0:
		return fmt.Sprintf("%d Ki", n>>10)
	}
	return fmt.Sprint(n)
}

func between(least, most uint32) string {
	switch {
	case least <= 1:
		return limit(uint64(most))
	case most == 0:
		return fmt.Sprintf("%d and more", least)
	}
	return fmt.Sprintf("%d to %d", least, most)
}

// foldsOf lists the order in which each algorithm folds the shares of four ranks into
// chunk 0. Other tests compare that order with the bits of runs.
func foldsOf(t testing.TB, verb Verb) string {
	var b strings.Builder
	for _, a := range Algorithms(verb) {
		switch {
		case a.isScan():
			fmt.Fprintf(&b, "* %s folds, for the last of four ranks, %v.\n", a.Name(), documentedScan(t, a, 4, 3))
		case a.entry().order != 0:
			fmt.Fprintf(&b, "* %s folds chunk 0 of four ranks as %v.\n", a.Name(), documented(t, a, 4, 0, 0))
		}
	}
	return b.String()
}

// String returns the fold in brackets: ((0 1) 2).
func (f *fold) String() string {
	if f.earlier == nil {
		return fmt.Sprint(f.rank)
	}
	return fmt.Sprintf("(%v %v)", f.earlier, f.later)
}
