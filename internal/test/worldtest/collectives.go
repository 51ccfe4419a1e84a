package worldtest

import (
	"context"

	"github.com/tutti-go/tutti/comm"
)

// Collectives returns one or more calls of each collective. The calls differ in whether they work
// in place, in the root, and in whether they block.
func Collectives[T number]() []Call {
	calls := []Call{{Name: "iallreduce", Verb: "allreduce", Chunks: true, Run: iAllReduce[T]}}
	for _, f := range forms[T]() {
		calls = append(calls, Call{f.name, f.verb, f.chunks, f.block})
	}
	return calls
}

// Persistent returns a call for each persistent collective. The call starts the collective twice.
// Between the starts it clears the output and writes the input again.
func Persistent[T number]() []Call {
	var calls []Call
	for _, f := range forms[T]() {
		if f.persistent {
			calls = append(calls, Call{"persistent " + f.name, f.verb, f.chunks, f.persist})
		}
	}
	return calls
}

// A form is one way to use a collective.
type form[T number] struct {
	name, verb string
	chunks     bool                  // see Call
	persistent bool                  // Persistent has this form, too
	root       func(n int) int       // chooses the root among n ranks; nil if there is none
	setUp      func(o *operation[T]) // sets the buffers of one rank
}

func forms[T number]() []form[T] {
	return []form[T]{
		{"barrier", "barrier", false, true, nil, func(*operation[T]) {}},
		{"broadcast from the first", "broadcast", false, false, first, broadcast[T]},
		{"broadcast from the last", "broadcast", false, true, last, broadcast[T]},
		{"gather", "gather", false, true, middle, gather[T]},
		{"gather in place", "gather", false, false, first, gatherInPlace[T]},
		{"scatter", "scatter", false, true, middle, scatter[T]},
		{"scatter in place", "scatter", false, false, first, scatterInPlace[T]},
		{"scatter from the last", "scatter", false, false, last, scatter[T]},

		{"allreduce", "allreduce", true, true, nil, allReduce[T]},
		{"allreduce out of place", "allreduce", true, true, nil, allReduceTo[T]},
		{"reduce to the last", "reduce", true, true, last, reduceTo[T]},
		{"reduce in place", "reduce", true, false, first, reduceInPlace[T]},
		{"reduce_scatter", "reduce_scatter", true, true, nil, reduceScatter[T]},
		{"reduce_scatter in place", "reduce_scatter", true, false, nil, reduceScatterInPlace[T]},
		{"reduce_scatterv", "reduce_scatterv", false, true, nil, reduceScatterV[T]},
		{"scan", "scan", false, true, nil, scan[T]},
		{"scan out of place", "scan", false, true, nil, scanTo[T]},
		{"exscan", "exscan", false, true, nil, exScan[T]},
		{"exscan out of place", "exscan", false, true, nil, exScanTo[T]},

		{"allgather", "allgather", false, true, nil, allGather[T]},
		{"allgather in place", "allgather", false, false, nil, allGatherInPlace[T]},
		{"alltoall", "alltoall", false, true, nil, allToAll[T]},
		{"alltoall in place", "alltoall", false, false, nil, allToAllInPlace[T]},
		{"alltoallv", "alltoallv", false, true, nil, allToAllV[T]},

		{"allgatherv", "allgatherv", false, true, nil, allGatherV[T]},
		{"allgatherv in place", "allgatherv", false, false, nil, allGatherVInPlace[T]},
		{"gatherv", "gatherv", false, true, first, gatherV[T]},
		{"scatterv", "scatterv", false, true, first, scatterV[T]},
	}
}

func first(int) int    { return 0 }
func middle(n int) int { return n / 2 }
func last(n int) int   { return n - 1 }

// prepare returns the operation of one rank.
func (f *form[T]) prepare(c *comm.Comm, count int, bt *BufferTracker) *operation[T] {
	o := &operation[T]{c: c, n: c.Size(), me: c.Rank(), count: count, op: comm.Sum}
	if f.root != nil {
		o.root = f.root(o.n)
	}
	f.setUp(o)
	track(bt, o.src)
	track(bt, o.dst)
	return o
}

// block makes the blocking call.
func (f *form[T]) block(ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
	o := f.prepare(c, count, bt)
	o.reset()
	return o.check(o.call(ctx, f.verb))
}

// persist makes a persistent request, and starts it twice.
func (f *form[T]) persist(ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
	o := f.prepare(c, count, bt)
	r := o.request(f.verb)
	defer r.Free()
	clear(o.counts) // the request has copied them
	for range 2 {
		o.reset()
		err := r.Start(ctx)
		if err == nil {
			_, err = r.Wait(ctx)
		}
		if err := o.check(err); err != nil {
			return err
		}
	}
	return nil
}
