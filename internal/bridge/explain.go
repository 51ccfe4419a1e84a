package bridge

import (
	"fmt"
	"strings"
)

// An Explanation says which algorithm a collective runs, why, and what the other algorithms would
// cost.
type Explanation struct {
	Op    string // "allreduce"
	Bytes int    // the size of the whole vector
	Ranks int
	Wire  string // all transports between the ranks: "tcp", "shm+tcp"; "" for a single rank

	// Chosen is the selection for operators that commute, NonCommutative the selection for other
	// operators. They are equal if the collective reduces nothing. NonBlocking is the selection for
	// non-blocking calls with operators that commute.
	Chosen, NonCommutative, NonBlocking Selection

	// The predictions in order of predicted time, the fastest first. Algorithms that cannot run
	// here come last.
	Predictions []Prediction
}

// A Selection is an algorithm, and the reason for it.
type Selection struct {
	Algorithm string
	Segment   int    // the segment size of its messages in bytes; 0 if it sends no segments
	Reason    string // "forced", "rule 3 of the tuning file", …
	Fails     string // why the call of a forced algorithm fails with fault.Misuse; else ""
}

// String reads "ring in segments of 131072 bytes: forced".
func (x Selection) String() string {
	switch {
	case x.Fails != "":
		return fmt.Sprintf("fails: %s is %s, and %s", x.Algorithm, x.Reason, x.Fails)
	case x.Segment == 0:
		return fmt.Sprintf("%s: %s", x.Algorithm, x.Reason)
	}
	return fmt.Sprintf("%s in segments of %d bytes: %s", x.Algorithm, x.Segment, x.Reason)
}

// A Prediction is the predicted time of one algorithm of a collective.
type Prediction struct {
	Algorithm string
	Seconds   float64 // the predicted time; valid if Known is true
	Known     bool
	Note      string // why it cannot run here, or can run only sometimes; else ""
}

// String returns several lines of text, each ended by a newline.
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
