package collective

import (
	"context"
	"strings"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// An Algorithm is one way to carry out one collective operation. It is an
// immutable, comparable value. The zero Algorithm is none, and refused.
type Algorithm struct{ number uint8 } // place in the catalogue, plus one

// Find is the algorithm of that name for verb. An unknown name gets fault.Misuse
// with those there are.
func Find(verb Verb, name string) (Algorithm, error) {
	for i := range catalogue {
		if v := &catalogue[i]; v.verb == verb && v.name == name {
			return Algorithm{uint8(i + 1)}, nil
		}
	}
	var names []string
	for _, a := range Algorithms(verb) {
		names = append(names, a.Name())
	}
	return Algorithm{}, misuse("collective.Find", "algorithm for %v: got %q, want one of %s", verb, name, strings.Join(names, ", "))
}

// Algorithms lists what there is for verb, the most modest first.
func Algorithms(verb Verb) []Algorithm {
	var all []Algorithm
	for i := range catalogue {
		if catalogue[i].verb == verb {
			all = append(all, Algorithm{uint8(i + 1)})
		}
	}
	return all
}

// none is what the zero Algorithm refers to.
var none = entry{}

func (a Algorithm) entry() *entry {
	if a.number == 0 {
		return &none
	}
	return &catalogue[a.number-1]
}

// Number tells it from all others of this build, and is never 0.
func (a Algorithm) Number() uint8 { return a.number }

// Name is the word that selects it among its verb's: "ring".
func (a Algorithm) Name() string { return a.entry().name }

// Verb is the operation that it carries out.
func (a Algorithm) Verb() Verb { return a.entry().verb }

// String reads "allreduce:ring", as in TUTTI_ALGORITHM.
func (a Algorithm) String() string { return a.Verb().String() + ":" + a.Name() }

// SupportsOrder reports whether it may be given operators that do (or do not) commute.
// Algorithms that do not reduce take everything.
func (a Algorithm) SupportsOrder(order reduce.Order) bool {
	return order != reduce.RankOrder || a.entry().order != reduce.Commutative
}

// Cost is what it takes on n ranks for a vector of m bytes, when messages travel
// in segments of so many bytes: how many messages are started, and how many bytes
// are moved and folded, one after the other. Multiplied by α, β and γ they add up
// to a time. Where the algorithm needs shared memory, α is the time to hand a piece
// over there, and β that to copy a byte. Of a hierarchical one it is what moves and
// is folded between n hosts. The zero Algorithm costs nothing.
func (a Algorithm) Cost(n, m, segment int) (alpha, beta, gamma float64) {
	v := a.entry()
	if v.cost == nil {
		return 0, 0, 0
	}
	return v.cost(float64(n), float64(m), float64(segment))
}

// The kinds of algorithm, by what they are given. dst and src never share
// memory, unless the comment says so.
type (
	// dst receives the finished result; it may be src.
	allReduce func(ctx context.Context, r *p2p.Round, dst, src []byte, k reduce.Kernel) error
	// buf holds this rank's share, and then the finished result.
	allReduceInPlace func(ctx context.Context, r *p2p.Round, buf []byte, k reduce.Kernel) error
	// dst, on the root only, receives the unfinished fold; it may be src.
	reduceToRoot func(ctx context.Context, r *p2p.Round, root int, dst, src []byte, k reduce.Kernel) error
	// dst receives the unfinished fold of this rank's chunk; it may be that chunk of src.
	reduceScatter func(ctx context.Context, r *p2p.Round, dst []byte, src chunks, k reduce.Kernel) error
	// buf is the root's to give, and everyone's to receive.
	broadcast func(ctx context.Context, r *p2p.Round, root int, buf []byte) error
	// buf receives all chunks; own is this rank's, and either lies in its place or
	// shares no memory with buf.
	allGather func(ctx context.Context, r *p2p.Round, buf chunks, own []byte) error
	// buf holds this rank's chunk, and then all.
	allGatherInPlace func(ctx context.Context, r *p2p.Round, buf chunks) error
	// dst is empty but on the root; src may be the root's chunk of it.
	gather func(ctx context.Context, r *p2p.Round, root int, dst chunks, src []byte) error
	// src is empty but on the root; dst may be the root's chunk of it.
	scatter func(ctx context.Context, r *p2p.Round, root int, dst []byte, src chunks) error
	// chunk i of src goes to rank i, chunk i of dst comes from rank i.
	allToAll func(ctx context.Context, r *p2p.Round, dst, src chunks) error
	// buf holds this rank's share, and then the unfinished fold of those up to it,
	// or before it.
	inclusiveScan func(ctx context.Context, r *p2p.Round, buf []byte, k reduce.Kernel) error
	// nothing moves.
	barrier func(ctx context.Context, r *p2p.Round) error
)

// check refuses, with fault.Misuse, an algorithm that is not one for verb or does
// not support op on the ranks of r.
func (a Algorithm) check(r *p2p.Round, verb Verb, op reduce.Op) error {
	e := a.entry()
	switch {
	case e.verb != verb:
		return misuse(verb.String(), "algorithm: got %v, want one for %v", a, verb)
	case e.order != 0 && op.Name() == "":
		return misuse(verb.String(), "operator: got none, want one such as sum")
	case e.order != 0 && !op.Commutative() && !a.SupportsOrderOn(reduce.RankOrder, r.Layout()):
		return misuse(verb.String(), "operator: got %s, which does not commute, want one that does: algorithm %s does not fold in rank order here", op.Name(), e.name)
	}
	return nil
}

// implementationOf returns the function of a, which must pass check. F is the one
// function type that the verb has.
func implementationOf[F any](r *p2p.Round, verb Verb, a Algorithm, op reduce.Op) (run F, err error) {
	if err := a.check(r, verb, op); err != nil {
		return run, err
	}
	return a.entry().run.(F), nil
}

// misuse is this package's error. It does not know the job's ranks.
func misuse(op, format string, args ...any) error {
	return fault.New(fault.Misuse, op, -1, format, args...)
}
