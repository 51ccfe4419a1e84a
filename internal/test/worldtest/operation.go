package worldtest

import (
	"context"

	"github.com/tutti-go/tutti/comm"
)

// An operation is a collective on one rank, with its buffers.
type operation[T number] struct {
	c     *comm.Comm
	n, me int
	count int
	root  int
	op    comm.Op
	opts  []comm.CallOption

	src, input  []T   // the input of an operation out of place, and its contents; nil in place
	dst, before []T   // the output, and its contents before the call; nil: zeros
	want        []T   // the contents of dst after the call; nil: any
	kept        bool  // dst is as wanted also after a call that has failed
	counts      []int // the argument of Counts; nil without it
}

// inPlace sets one buffer for input and output.
func (o *operation[T]) inPlace(in, want []T) {
	o.dst, o.before, o.want = make([]T, len(in)), in, want
}

// outOfPlace sets two buffers.
func (o *operation[T]) outOfPlace(in, want []T) {
	o.src, o.input, o.dst, o.want = make([]T, len(in)), in, make([]T, len(want)), want
	o.opts = append(o.opts, comm.From(o.src))
}

// onRoot returns v on the root, and nil on other ranks.
func (o *operation[T]) onRoot(v []T) []T {
	if o.me != o.root {
		return nil
	}
	return v
}

// own returns this rank's vector.
func (o *operation[T]) own() []T { return vector[T](o.me, o.count) }

// part sets unequal counts. It returns this rank's part of a vector that consists of the parts of all
// ranks, and the whole vector.
func (o *operation[T]) part() (mine, all []T) {
	counts, total := unequal(o.n, o.count)
	lo, hi := offset(counts, o.me)
	all = vector[T](3, total)
	o.setCounts(counts)
	return all[lo:hi:hi], all
}

func (o *operation[T]) setCounts(counts []int) {
	o.counts = counts
	o.opts = append(o.opts, comm.Counts(counts))
}

// reset writes the contents of the buffers before a call.
func (o *operation[T]) reset() {
	clear(o.dst)
	copy(o.dst, o.before)
	copy(o.src, o.input)
}

// check returns the error of a call, or what is wrong with the buffers after the call.
func (o *operation[T]) check(err error) error {
	if e := same("src", o.src, o.input); e != nil {
		return e
	}
	if o.want != nil && (err == nil || o.kept) {
		if e := same("dst", o.dst, o.want); e != nil {
			return e
		}
	}
	return err
}

// call makes the blocking call of a collective.
func (o *operation[T]) call(ctx context.Context, verb string) error {
	switch verb {
	case "barrier":
		return o.c.Barrier(ctx)
	case "broadcast":
		return comm.Broadcast(ctx, o.c, o.dst, o.root, o.opts...)
	case "gather", "gatherv":
		return comm.Gather(ctx, o.c, o.dst, o.root, o.opts...)
	case "scatter", "scatterv":
		return comm.Scatter(ctx, o.c, o.dst, o.root, o.opts...)
	case "allreduce":
		return comm.AllReduce(ctx, o.c, o.dst, o.op, o.opts...)
	case "reduce":
		return comm.Reduce(ctx, o.c, o.dst, o.op, o.root, o.opts...)
	case "reduce_scatter", "reduce_scatterv":
		return comm.ReduceScatter(ctx, o.c, o.dst, o.op, o.opts...)
	case "scan":
		return comm.Scan(ctx, o.c, o.dst, o.op, o.opts...)
	case "exscan":
		return comm.ExScan(ctx, o.c, o.dst, o.op, o.opts...)
	case "allgather", "allgatherv":
		return comm.AllGather(ctx, o.c, o.dst, o.opts...)
	case "alltoall", "alltoallv":
		return comm.AllToAll(ctx, o.c, o.dst, o.opts...)
	}
	panic("no collective " + verb)
}

// request returns the persistent request of a collective.
func (o *operation[T]) request(verb string) *comm.Request {
	opts := append(o.opts, comm.Persistent())
	switch verb {
	case "barrier":
		return o.c.IBarrier(opts...)
	case "broadcast":
		return comm.IBroadcast(o.c, o.dst, o.root, opts...)
	case "gather", "gatherv":
		return comm.IGather(o.c, o.dst, o.root, opts...)
	case "scatter", "scatterv":
		return comm.IScatter(o.c, o.dst, o.root, opts...)
	case "allreduce":
		return comm.IAllReduce(o.c, o.dst, o.op, opts...)
	case "reduce":
		return comm.IReduce(o.c, o.dst, o.op, o.root, opts...)
	case "reduce_scatter", "reduce_scatterv":
		return comm.IReduceScatter(o.c, o.dst, o.op, opts...)
	case "scan":
		return comm.IScan(o.c, o.dst, o.op, opts...)
	case "exscan":
		return comm.IExScan(o.c, o.dst, o.op, opts...)
	case "allgather", "allgatherv":
		return comm.IAllGather(o.c, o.dst, opts...)
	case "alltoall", "alltoallv":
		return comm.IAllToAll(o.c, o.dst, opts...)
	}
	panic("no collective " + verb)
}
