package worldtest

import (
	"context"

	"github.com/tutti-go/tutti/comm"
)

// exchanges returns the calls after which every rank holds elements of every other rank.
func exchanges[T number]() []Call {
	return []Call{
		{Name: "allgather", Verb: "allgather", Run: allGather[T]},
		{Name: "allgather in place", Verb: "allgather", Run: allGatherInPlace[T]},
		{Name: "alltoall", Verb: "alltoall", Run: allToAll[T]},
		{Name: "alltoall in place", Verb: "alltoall", Run: allToAllInPlace[T]},
		{Name: "alltoallv", Verb: "alltoallv", Run: allToAllV[T]},
	}
}

// vectorVariants returns the calls with a count for each rank.
func vectorVariants[T number]() []Call {
	return []Call{
		{Name: "allgatherv", Verb: "allgatherv", Run: allGatherV[T]},
		{Name: "allgatherv in place", Verb: "allgatherv", Run: allGatherVInPlace[T]},
		{Name: "gatherv", Verb: "gatherv", Run: gatherV[T]},
		{Name: "scatterv", Verb: "scatterv", Run: scatterV[T]},
	}
}

func allGather[T number](ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
	src, dst := track(bt, vector[T](c.Rank(), count)), track(bt, make([]T, c.Size()*count))
	err := comm.AllGather(ctx, c, dst, comm.From(src))
	if e := same("src", src, vector[T](c.Rank(), count)); e != nil {
		return e
	}
	if err != nil {
		return err
	}
	return same("dst", dst, concatenated[T](c.Size(), count))
}

func allGatherInPlace[T number](ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
	dst := track(bt, make([]T, c.Size()*count))
	own := dst[c.Rank()*count : (c.Rank()+1)*count]
	copy(own, vector[T](c.Rank(), count))
	if err := comm.AllGather(ctx, c, dst); err != nil {
		return err
	}
	return same("dst", dst, concatenated[T](c.Size(), count))
}

// allToAllVectors returns what rank me sends to each of n ranks, and what it receives from them.
func allToAllVectors[T number](n, me, count int) (out, in []T) {
	for r := range n {
		out = append(out, vector[T](me*n+r, count)...)
		in = append(in, vector[T](r*n+me, count)...)
	}
	return out, in
}

func allToAll[T number](ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
	src, want := allToAllVectors[T](c.Size(), c.Rank(), count)
	track(bt, src)
	dst := track(bt, make([]T, len(want)))
	err := comm.AllToAll(ctx, c, dst, comm.From(src))
	out, _ := allToAllVectors[T](c.Size(), c.Rank(), count)
	if e := same("src", src, out); e != nil {
		return e
	}
	if err != nil {
		return err
	}
	return same("dst", dst, want)
}

func allToAllInPlace[T number](ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
	buf, want := allToAllVectors[T](c.Size(), c.Rank(), count)
	track(bt, buf)
	if err := comm.AllToAll(ctx, c, buf); err != nil {
		return err
	}
	return same("buf", buf, want)
}

func allToAllV[T number](ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
	n, me := c.Size(), c.Rank()
	some := func(from, to int) int { return (from*n + to + count) % 7 * (count/7 + 1) }
	sends, recvs := make([]int, n), make([]int, n)
	var src, want []T
	for r := range n {
		sends[r], recvs[r] = some(me, r), some(r, me)
		src = append(src, vector[T](me*n+r, sends[r])...)
		want = append(want, vector[T](r*n+me, recvs[r])...)
	}
	track(bt, src)
	dst := track(bt, make([]T, len(want)))
	if err := comm.AllToAll(ctx, c, dst, comm.From(src), comm.Counts(recvs), comm.SendCounts(sends)); err != nil {
		return err
	}
	return same("dst", dst, want)
}

// fullVector returns the vector that consists of the ranks' unequal parts.
func fullVector[T number](total int) []T { return vector[T](3, total) }

func allGatherV[T number](ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
	counts, total := unequal(c.Size(), count)
	lo, hi := offset(counts, c.Rank())
	src, dst := track(bt, fullVector[T](total)[lo:hi]), track(bt, make([]T, total))
	if err := comm.AllGather(ctx, c, dst, comm.From(src), comm.Counts(counts)); err != nil {
		return err
	}
	return same("dst", dst, fullVector[T](total))
}

func allGatherVInPlace[T number](ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
	counts, total := unequal(c.Size(), count)
	lo, hi := offset(counts, c.Rank())
	buf := track(bt, make([]T, total))
	copy(buf[lo:hi], fullVector[T](total)[lo:hi])
	if err := comm.AllGather(ctx, c, buf, comm.Counts(counts)); err != nil {
		return err
	}
	return same("buf", buf, fullVector[T](total))
}

func gatherV[T number](ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
	counts, total := unequal(c.Size(), count)
	lo, hi := offset(counts, c.Rank())
	src := track(bt, fullVector[T](total)[lo:hi])
	var dst []T
	if c.Rank() == 0 {
		dst = track(bt, make([]T, total))
	}
	if err := comm.Gather(ctx, c, dst, 0, comm.From(src), comm.Counts(counts)); err != nil || c.Rank() != 0 {
		return err
	}
	return same("dst", dst, fullVector[T](total))
}

func scatterV[T number](ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
	counts, total := unequal(c.Size(), count)
	lo, hi := offset(counts, c.Rank())
	dst := track(bt, make([]T, hi-lo))
	var src []T
	if c.Rank() == 0 {
		src = track(bt, fullVector[T](total))
	}
	if err := comm.Scatter(ctx, c, dst, 0, comm.From(src), comm.Counts(counts)); err != nil {
		return err
	}
	return same("dst", dst, fullVector[T](total)[lo:hi])
}
