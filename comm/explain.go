package comm

import (
	"fmt"
	"strings"

	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/reduce"
)

// An Explanation says which algorithm a collective runs, why, and what the others
// would cost. It prints as lines for people.
type Explanation struct {
	Op    string // "allreduce"
	Bytes int    // of the whole vector
	Ranks int
	Wire  string // all wires between the ranks: "tcp", "shm+tcp"; "" for one rank alone

	// What is chosen for operators that commute, and for the others, which is
	// the same where nothing is folded; and for non-blocking calls of the former.
	Chosen, NonCommutative, NonBlocking Selection

	// The one that is predicted to be the fastest first, and what cannot run here last.
	Predictions []Prediction
}

// A Selection is an algorithm, and the reason for it.
type Selection struct {
	Algorithm string
	Segment   int    // bytes of a segment of its messages; 0: it sends none
	Reason    string // "forced", "rule 3 of the tuning file", …
	Fails     string // why the call gets fault.Misuse, as only a forced one can; "": it runs
}

func (x Selection) String() string {
	switch {
	case x.Fails != "":
		return fmt.Sprintf("fails: %s is %s, and %s", x.Algorithm, x.Reason, x.Fails)
	case x.Segment == 0:
		return fmt.Sprintf("%s: %s", x.Algorithm, x.Reason)
	}
	return fmt.Sprintf("%s in segments of %d bytes: %s", x.Algorithm, x.Segment, x.Reason)
}

// A Prediction is one of a collective's algorithms.
type Prediction struct {
	Algorithm string
	Seconds   float64 // as predicted, where Known
	Known     bool
	Note      string // why it cannot run here, or only sometimes; ""
}

// Explain says how c carries out a collective on vectors of that many bytes: all
// ranks' parts together where it has parts, and 0 for gatherv, scatterv and
// alltoallv, where ranks may not know it. op is the collective's name as errors
// give it, "reduce_scatter"; other names get fault.Misuse. It sends nothing, and
// any rank may call it at any time.
//
// Times are predicted from α, β and γ of the tuning file, or, without one, from
// round figures. They rank algorithms, and decide nothing.
func (c *Comm) Explain(op string, bytes int) (*Explanation, error) {
	verb, err := collective.ParseVerb(op)
	if err != nil {
		return nil, c.withOp("explain", err)
	}
	sharing := c.group.HasShared()
	x := &Explanation{
		Op: op, Bytes: bytes, Ranks: c.Size(), Wire: c.wire,
		Chosen:         c.chosen(verb, bytes, true, sharing),
		NonCommutative: c.chosen(verb, bytes, false, sharing),
		NonBlocking:    c.chosen(verb, bytes, true, false),
	}
	var impossible []Prediction
	for _, k := range c.rt.model.Estimates(verb, c.Size(), bytes, c.rt.opt.segment, c.wire) {
		note := ""
		switch {
		case k.Algorithm.NeedsShared() && !sharing:
			note = "impossible here: the ranks share no memory"
		case k.Algorithm.NeedsShared():
			note = "blocking calls only"
		case k.Algorithm.Hierarchical() && c.group.Layout().Hosts() == 1:
			note = "gains nothing on one host"
		case k.Algorithm.Hierarchical():
			note = "predicted as if every rank had a host to itself"
		case !k.Algorithm.SupportsOrder(reduce.RankOrder):
			note = "only for operators that commute"
		}
		one := Prediction{k.Algorithm.Name(), k.Seconds, k.Known, note}
		if k.Algorithm.NeedsShared() && !sharing {
			impossible = append(impossible, one)
		} else {
			x.Predictions = append(x.Predictions, one)
		}
	}
	x.Predictions = append(x.Predictions, impossible...)
	return x, nil
}

// chosen asks what prepare of a plan asks, and refuses what that refuses.
func (c *Comm) chosen(verb collective.Verb, bytes int, commutative, sharing bool) Selection {
	k := c.chooser.Choose(verb, bytes, commutative, sharing)
	x := Selection{Algorithm: k.Algorithm.Name(), Segment: k.Segment}
	if x.Segment == 0 && !k.Algorithm.NeedsShared() {
		x.Segment = c.rt.opt.segment
	}
	switch {
	case k.Algorithm.NeedsShared() && !sharing && c.group.HasShared():
		x.Fails = "carries out blocking calls only"
	case k.Algorithm.NeedsShared() && !sharing:
		x.Fails = "needs memory that the ranks share"
	case !commutative && !k.Algorithm.SupportsOrderOn(reduce.RankOrder, c.group.Layout()):
		x.Fails = "needs an operator that commutes"
	}
	switch k.Reason {
	case collective.Forced:
		x.Reason = "forced"
	case collective.Tuned:
		x.Reason = fmt.Sprintf("rule %d of the tuning file", k.Rule)
	case collective.Default:
		x.Reason = fmt.Sprintf("default rule %d", k.Rule)
	default:
		x.Reason = "no rule covers this call"
	}
	return x
}

// String is some lines, each ended by a newline.
func (x *Explanation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s of %d bytes on %d ranks", x.Op, x.Bytes, x.Ranks)
	if x.Wire != "" {
		fmt.Fprintf(&b, " over %s", x.Wire)
	}
	b.WriteString("\n  ")
	if x.Chosen.Fails == "" {
		b.WriteString("runs ")
	}
	fmt.Fprintf(&b, "%v\n", x.Chosen)
	if x.NonCommutative != x.Chosen {
		fmt.Fprintf(&b, "  where the operator does not commute: %v\n", x.NonCommutative)
	}
	if x.NonBlocking != x.Chosen {
		fmt.Fprintf(&b, "  where the call does not block: %v\n", x.NonBlocking)
	}
	for _, k := range x.Predictions {
		predicted := "unknown"
		if k.Known {
			predicted = fmt.Sprintf("%.1f us", 1e6*k.Seconds)
		}
		line := fmt.Sprintf("  %14s  %-18s  %s", predicted, k.Algorithm, k.Note)
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}
