package collective

import (
	"slices"
	"strings"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/reduce"
)

// A Rule says when an algorithm runs: for vectors of at most MaxBytes on at most
// MaxRanks ranks. 0 stands for no limit.
type Rule struct {
	Algorithm Algorithm
	MaxBytes  uint64
	MaxRanks  uint32
}

func (u Rule) covers(bytes, ranks int) bool {
	return (u.MaxBytes == 0 || uint64(bytes) <= u.MaxBytes) && (u.MaxRanks == 0 || ranks <= int(u.MaxRanks))
}

// MaxRules is the most rules that a table may have.
const MaxRules = 128

// A Table says which algorithm runs. Of the rules for a verb, the first that
// covers a call, and whose algorithm takes its operator, is followed. All ranks
// of a communicator use an equal one.
//
// A Table that nobody changes may be used by any number of goroutines.
type Table struct {
	rules  []Rule
	forced [len(verbNames)]Algorithm
}

// DefaultTable holds the rules for when nothing was measured.
func DefaultTable() *Table {
	rule := func(verb Verb, name string, maxBytes uint64) Rule {
		a, err := Find(verb, name)
		if err != nil {
			panic(err) // a slip in the lines below, which every test of the table would find
		}
		return Rule{Algorithm: a, MaxBytes: maxBytes}
	}
	const small = 64 << 10 // below it the number of steps decides, above it the bytes
	return &Table{rules: []Rule{
		rule(VerbAllReduce, shared, 0),
		rule(VerbReduce, shared, 0),
		rule(VerbBroadcast, shared, 0),
		rule(VerbAllGather, shared, 0),
		rule(VerbAllGatherV, shared, 0),
		rule(VerbReduceScatter, shared, 0),
		rule(VerbReduceScatterV, shared, 0),
		rule(VerbAllToAll, shared, 0),
		rule(VerbBarrier, shared, 0),
		rule(VerbAllReduce, "recursive_doubling", small),
		rule(VerbAllReduce, "ring", 0),
		rule(VerbAllReduce, "pairwise", 0),
		rule(VerbReduce, "binomial", small),
		rule(VerbReduce, "linear", small),
		rule(VerbReduce, "pairwise", 0),
		rule(VerbBroadcast, "binomial", 0),
		rule(VerbAllGather, "bruck", small),
		rule(VerbAllGather, "ring", 0),
		rule(VerbGather, "binomial", small),
		rule(VerbGather, "linear", 0),
		rule(VerbScatter, "binomial", small),
		rule(VerbScatter, "linear", 0),
		rule(VerbReduceScatter, "pairwise", 0),
		rule(VerbReduceScatterV, "pairwise", 0),
	}}
}

// NewTable makes a table of rules. More than MaxRules, and rules without an
// algorithm, get fault.Misuse.
func NewTable(rules []Rule) (*Table, error) {
	if len(rules) > MaxRules {
		return nil, misuse("collective.NewTable", "%d rules; at most %d are allowed", len(rules), MaxRules)
	}
	for i, u := range rules {
		if u.Algorithm == (Algorithm{}) {
			return nil, misuse("collective.NewTable", "rule %d has no algorithm", i)
		}
	}
	return &Table{rules: slices.Clone(rules)}, nil
}

// Rules are the table's rules, without what Force added.
func (t *Table) Rules() []Rule { return slices.Clone(t.rules) }

// Select is the algorithm for a vector of that many bytes on that many ranks. It
// is a pure function of the table and the arguments, so ranks that agree on them
// choose alike.
//
// bytes is the length of the whole vector: all ranks' chunks together where it
// has chunks, and 0 for v-variants, where ranks may not know it. A forced
// algorithm is returned even where it does not take operators that do not
// commute, or needs shared memory and there is none; the call then fails with
// fault.Misuse.
func (t *Table) Select(verb Verb, bytes, ranks int, commutative, sharing bool) Algorithm {
	if int(verb) >= len(t.forced) {
		return Algorithm{}
	}
	if a := t.forced[verb]; a != (Algorithm{}) {
		return a
	}
	order := reduce.RankOrder
	if commutative {
		order = reduce.Commutative
	}
	for _, u := range t.rules {
		if u.Algorithm.Verb() == verb && u.covers(bytes, ranks) && u.Algorithm.Takes(order) && (sharing || !u.Algorithm.NeedsShared()) {
			return u.Algorithm
		}
	}
	return modest(verb)
}

// modest is the first of verb's algorithms in the catalogue, which takes
// everything.
func modest(verb Verb) Algorithm {
	for i := range catalogue {
		if catalogue[i].verb == verb {
			return Algorithm{uint8(i + 1)}
		}
	}
	return Algorithm{}
}

// Force makes algorithms run whatever the rules say, by a text like
// "allreduce:ring,broadcast:binomial", the form of TUTTI_ALGORITHM. An empty
// text changes nothing. A text that cannot be followed gets fault.Misuse, which
// lists what there is, and changes nothing either. Force is called before the
// table is in use.
func (t *Table) Force(text string) error {
	forced := t.forced
	for item := range strings.SplitSeq(text, ",") {
		item = strings.TrimSpace(item)
		if item == "" {
			continue
		}
		a, err := parseAlgorithm(item)
		if err != nil {
			return fault.New(fault.Misuse, "collective.Table.Force", -1, "%q: %w", text, err)
		}
		forced[a.Verb()] = a
	}
	t.forced = forced
	return nil
}

// parseAlgorithm reads what Algorithm.String wrote.
func parseAlgorithm(text string) (Algorithm, error) {
	verbName, name, ok := strings.Cut(text, ":")
	if !ok {
		return Algorithm{}, misuse("collective", "%q is not of the form collective:algorithm", text)
	}
	verb, err := ParseVerb(strings.TrimSpace(verbName))
	if err != nil {
		return Algorithm{}, err
	}
	return Find(verb, strings.TrimSpace(name))
}
