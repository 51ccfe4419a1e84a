package collective

import (
	"slices"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/topology"
)

// A TableRule names an algorithm, a segment size, and the calls that use them. It covers calls with
// vectors of at most MaxBytes, on MinRanks to MaxRanks ranks that are connected by Wire. A limit
// that is 0 or "" does not apply.
type TableRule struct {
	Algorithm Algorithm
	MaxBytes  uint64
	MinRanks  uint32
	MaxRanks  uint32
	Segment   uint32 // bytes; 0: the communicator's default
	Wire      string // the name of the communicator's wires, as passed to Table.Chooser
}

// appliesTo reports whether the rule can cover calls of a communicator with the given number of
// ranks and the given wire.
func (u TableRule) appliesTo(ranks int, wire string) bool {
	return ranks >= int(u.MinRanks) && (u.MaxRanks == 0 || ranks <= int(u.MaxRanks)) && (u.Wire == "" || u.Wire == wire)
}

// The bounds of a Table.
const (
	MaxRules    = 512
	MinSegment  = 64
	MaxSegment  = 16 << 20
	MaxWireName = 32 // bytes of a wire's name
)

// A Table chooses the algorithm of each call. A call is decided in this order:
//
//  1. an algorithm that Force has named for the verb, whatever else holds
//  2. the first measured rule that covers the call and whose algorithm supports it
//  3. the first other rule that covers the call and whose algorithm supports it
//  4. the first algorithm of the verb in the catalogue, which supports every call
//
// Whether a rule covers a call depends on the bytes, the number of ranks and the wire. Whether an
// algorithm supports a call depends on the operator's order, on shared memory, and on the hosts of
// the ranks. All ranks of a communicator use an equal table and give equal arguments, so they make
// the same choice without a message.
//
// Several goroutines may use a Table at the same time, as long as none of them changes it.
type Table struct {
	rules  []TableRule
	tuned  int // number of measured rules, which come first
	forced [len(verbNames)]selection
}

// A selection is an algorithm with a segment size in bytes. The size 0 means that no size is
// given.
type selection struct {
	algorithm Algorithm
	segment   uint32
}

// NewTable returns a table with two lists of rules. The list tuned holds measured rules, and the
// list others holds all other rules. The other rules decide only calls that no measured rule
// decides. For more than MaxRules rules, or for a rule for which Check fails, NewTable returns
// fault.Misuse.
func NewTable(tuned, others []TableRule) (*Table, error) {
	t := &Table{rules: slices.Concat(tuned, others), tuned: len(tuned)}
	if len(t.rules) > MaxRules {
		return nil, misuse("collective.NewTable", "rules: got %d, want at most %d", len(t.rules), MaxRules)
	}
	for i, u := range t.rules {
		if err := u.Check(); err != nil {
			return nil, fault.New(fault.Misuse, "collective.NewTable", -1, "rule %d: %w", i+1, fault.Cause(err))
		}
	}
	return t, nil
}

// Check returns fault.Misuse for a rule that no Table may have.
func (u TableRule) Check() error {
	bad := func(format string, args ...any) error { return misuse("collective.TableRule.Check", format, args...) }
	switch {
	case u.Algorithm == (Algorithm{}):
		return bad("algorithm: got none, want one")
	case u.MaxRanks != 0 && u.MaxRanks < u.MinRanks:
		return bad("ranks: got at least %d and at most %d, want a range that is not empty", u.MinRanks, u.MaxRanks)
	case u.Segment != 0 && u.Algorithm.NeedsShared():
		return bad("segment: got %d bytes, want 0, because %v sends no messages", u.Segment, u.Algorithm)
	case len(u.Wire) > MaxWireName:
		return bad("wire: got a name of %d bytes, want at most %d", len(u.Wire), MaxWireName)
	}
	return CheckSegment(int(u.Segment))
}

// CheckSegment returns fault.Misuse for an invalid segment size. The size 0, which means the
// default, is valid. Any other size must be a multiple of 16 bytes, the size of the largest
// element, and lie between MinSegment and MaxSegment.
func CheckSegment(bytes int) error {
	if bytes != 0 && (bytes < MinSegment || bytes > MaxSegment || bytes%16 != 0) {
		return misuse("collective.CheckSegment", "segment: got %d bytes, want a multiple of 16 from %d to %d", bytes, MinSegment, MaxSegment)
	}
	return nil
}

// Rules returns a copy of the table's rules. It does not include the algorithms that Force has set.
func (t *Table) Rules() []TableRule { return slices.Clone(t.rules) }

// A Reason says why an algorithm was chosen.
type Reason uint8

// The reasons.
const (
	Forced   Reason = iota + 1 // by Table.Force, whatever the rules say
	Tuned                      // by a rule that was measured
	Default                    // by another rule
	Fallback                   // because no rule that covers the call has an algorithm that supports it
)

// A Choice is the result of Choose for one call.
type Choice struct {
	Algorithm Algorithm
	Segment   int // bytes; 0: the communicator's default
	Reason    Reason
	Rule      int // if Reason is Tuned or Default: the rule's number among the rules of that kind, from 1
}

// A Chooser is a Table as one communicator uses it. It holds only the rules that can cover a call
// of that communicator, so that a choice takes only nanoseconds and does not slow down small
// collectives. A Chooser never changes.
type Chooser struct {
	forced [len(verbNames)]selection
	rules  [len(verbNames)][]candidate
}

// A candidate is a rule that can cover a call of one communicator. Conditions on the
// communicator (the number of ranks, the wire, the hosts) have been checked already. Choose
// checks the conditions on the call.
type candidate struct {
	selection
	maxBytes         uint64
	needsCommutative bool // the operator must commute
	needsShared      bool // ranks must share memory
	reason           Reason
	number           int
}

// Chooser returns the Chooser of t for a communicator with the given number of ranks on one host,
// connected by the given wire. Equal tables and arguments give equal Choosers.
func (t *Table) Chooser(ranks int, wire string) *Chooser {
	flat := topology.Flat(ranks)
	return t.ChooserOn(&flat, wire)
}

// ChooserOn is like Chooser, for ranks with the placement l. Rules for hierarchical algorithms
// apply only if there are several hosts and one of them has several ranks.
func (t *Table) ChooserOn(l *topology.Layout, wire string) *Chooser {
	c := &Chooser{forced: t.forced}
	levels := l.Hosts() > 1 && l.MaxRanksPerHost() > 1
	for i, u := range t.rules {
		if !u.appliesTo(l.Size(), wire) || u.Algorithm.Hierarchical() && !levels {
			continue
		}
		reason, number := Tuned, i+1
		if i >= t.tuned {
			reason, number = Default, i+1-t.tuned
		}
		verb := u.Algorithm.Verb()
		c.rules[verb] = append(c.rules[verb], candidate{
			selection: selection{u.Algorithm, u.Segment}, maxBytes: u.MaxBytes,
			needsCommutative: !u.Algorithm.SupportsOrderOn(reduce.RankOrder, l), needsShared: u.Algorithm.NeedsShared(),
			reason: reason, number: number,
		})
	}
	return c
}

// Choose returns the algorithm and the segment size for a call. The parameter commutative says
// whether the operator commutes. The parameter hasShared says whether the call may use shared
// memory.
//
// The parameter bytes is the length of the whole vector, which includes the chunks of all ranks. It
// is 0 for gatherv, scatterv and alltoallv, because ranks may not know the length. Choose returns a
// forced algorithm even if it does not support the operator, or if it needs shared memory and the
// call has none. Such a call then fails with fault.Misuse.
func (c *Chooser) Choose(verb Verb, bytes int, commutative, hasShared bool) Choice {
	if int(verb) >= len(c.forced) {
		return Choice{}
	}
	if p := c.forced[verb]; p.algorithm != (Algorithm{}) {
		return Choice{Algorithm: p.algorithm, Segment: int(p.segment), Reason: Forced}
	}
	for i := range c.rules[verb] {
		u := &c.rules[verb][i]
		if (u.maxBytes == 0 || uint64(bytes) <= u.maxBytes) && (commutative || !u.needsCommutative) && (hasShared || !u.needsShared) {
			return Choice{Algorithm: u.algorithm, Segment: int(u.segment), Reason: u.reason, Rule: u.number}
		}
	}
	return Choice{Algorithm: fallbackFor(verb), Reason: Fallback}
}

// fallbackFor returns the verb's first algorithm in the catalogue, which has no conditions.
func fallbackFor(verb Verb) Algorithm {
	for i := range catalogue {
		if catalogue[i].verb == verb {
			return Algorithm{uint8(i + 1)}
		}
	}
	return Algorithm{}
}
