package collective

import (
	"context"
	"strings"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// An Algorithm is one way to carry out one collective operation. It is an immutable, comparable
// value. The zero Algorithm stands for no algorithm, and every call refuses it.
type Algorithm struct{ number uint8 } // index in the catalogue, plus one

// Find returns the algorithm with the given verb and name. For an unknown name it returns
// fault.Misuse, and the error lists the known names.
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

// Algorithms lists the algorithms of a verb in the order of the catalogue. The first algorithm has
// no conditions: it runs on any ranks, for any operator, and without shared memory.
func Algorithms(verb Verb) []Algorithm {
	var all []Algorithm
	for i := range catalogue {
		if catalogue[i].verb == verb {
			all = append(all, Algorithm{uint8(i + 1)})
		}
	}
	return all
}

// none is the entry of the zero Algorithm.
var none = entry{}

func (a Algorithm) entry() *entry {
	if a.number == 0 {
		return &none
	}
	return &catalogue[a.number-1]
}

// Number returns the algorithm's number, which is unique in this build and never 0.
func (a Algorithm) Number() uint8 { return a.number }

// Name returns the algorithm's name, such as "ring". It is unique among the algorithms of one
// verb.
func (a Algorithm) Name() string { return a.entry().name }

// Verb returns the operation that the algorithm carries out.
func (a Algorithm) Verb() Verb { return a.entry().verb }

// String returns the verb and the name in the form of TUTTI_ALGORITHM, such as "allreduce:ring".
func (a Algorithm) String() string { return a.Verb().String() + ":" + a.Name() }

// SupportsOrder reports whether the algorithm keeps the order of folds that an operator needs.
// Algorithms that do not reduce support every order.
func (a Algorithm) SupportsOrder(order reduce.Order) bool {
	return order != reduce.RankOrder || a.entry().order != reduce.Commutative
}

// Cost returns the cost of the algorithm on n ranks, for a vector of m bytes in segments of the
// given size in bytes. The cost consists of the messages started (alpha), the bytes moved (beta)
// and the bytes folded (gamma). It counts only the critical path, so work that ranks do at the same
// time counts once. The predicted time is alpha·α + beta·β + gamma·γ.
//
// In shared memory, alpha counts the fragments handed over, and beta counts the bytes copied. For a
// hierarchical algorithm n counts hosts, and the cost covers only the work between hosts. The zero
// Algorithm costs nothing.
func (a Algorithm) Cost(n, m, segment int) (alpha, beta, gamma float64) {
	v := a.entry()
	if v.cost == nil {
		return 0, 0, 0
	}
	return v.cost(float64(n), float64(m), float64(segment))
}

// The function types of the catalogue. Each is named after the operation that it carries out. dst
// and src never share memory, unless the type's comment allows it. A fold is unfinished until
// Kernel.Finish has been applied to it.
type (
	// dst receives the finished result. It may be the same memory as src.
	allReduce func(ctx context.Context, r *p2p.Round, dst, src []byte, k reduce.Kernel) error
	// On entry buf holds this rank's share. On return it holds the finished result.
	allReduceInPlace func(ctx context.Context, r *p2p.Round, buf []byte, k reduce.Kernel) error
	// On the root, dst receives the unfinished fold. It may be the same memory as src. Other ranks
	// ignore dst.
	reduceToRoot func(ctx context.Context, r *p2p.Round, root int, dst, src []byte, k reduce.Kernel) error
	// dst receives the unfinished fold of this rank's chunk. It may be the same memory as that
	// chunk of src.
	reduceScatter func(ctx context.Context, r *p2p.Round, dst []byte, src chunks, k reduce.Kernel) error
	// The root sends buf. The other ranks receive into it.
	broadcast func(ctx context.Context, r *p2p.Round, root int, buf []byte) error
	// buf receives all chunks. own is this rank's chunk. It is either its position in buf, or
	// memory outside buf.
	allGather func(ctx context.Context, r *p2p.Round, buf chunks, own []byte) error
	// On entry buf holds this rank's chunk. On return it holds all chunks.
	allGatherInPlace func(ctx context.Context, r *p2p.Round, buf chunks) error
	// dst is empty on all ranks but the root. src may be the root's chunk of dst.
	gather func(ctx context.Context, r *p2p.Round, root int, dst chunks, src []byte) error
	// src is empty on all ranks but the root. dst may be the root's chunk of src.
	scatter func(ctx context.Context, r *p2p.Round, root int, dst []byte, src chunks) error
	// Chunk i of src goes to rank i. Chunk i of dst comes from rank i.
	allToAll func(ctx context.Context, r *p2p.Round, dst, src chunks) error
	// On entry buf holds this rank's share. On return buf holds the unfinished fold of the shares
	// of ranks 0 to this rank. The algorithms of ExScan have this type, too. Their fold omits this
	// rank's share, and on rank 0 they do not change buf.
	inclusiveScan func(ctx context.Context, r *p2p.Round, buf []byte, k reduce.Kernel) error
	// No data moves.
	barrier func(ctx context.Context, r *p2p.Round) error
)

// check returns fault.Misuse if the algorithm belongs to another verb, or if it does not support
// the operator on the ranks of the round.
func (a Algorithm) check(r *p2p.Round, verb Verb, op reduce.Op) error {
	e := a.entry()
	switch {
	case e.verb != verb:
		return misuse(verb.String(), "algorithm: got %v, want one for %v", a, verb)
	case e.order != 0 && op.Name() == "":
		return misuse(verb.String(), "operator: got none, want one such as sum")
	case e.order != 0 && !op.Commutative() && !a.SupportsOrderOn(reduce.RankOrder, r.Layout()):
		return misuse(verb.String(), "operator: got %s, which does not commute, want one that commutes, because algorithm %s does not fold in rank order here", op.Name(), e.name)
	}
	return nil
}

// implementationOf returns the function that implements a. If check returns an error,
// implementationOf returns that error. F is the function type of the verb.
func implementationOf[F any](r *p2p.Round, verb Verb, a Algorithm, op reduce.Op) (run F, err error) {
	if err := a.check(r, verb, op); err != nil {
		return run, err
	}
	return a.entry().run.(F), nil
}

// misuse returns a fault.Misuse error of this package. The error names no rank, because the
// package does not know the ranks of the job.
func misuse(op, format string, args ...any) error {
	return fault.New(fault.Misuse, op, -1, format, args...)
}
