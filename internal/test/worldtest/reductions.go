package worldtest

import (
	"context"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/tensor"
)

// reductions returns the calls that reduce.
func reductions[T number]() []Call {
	return []Call{
		{Name: "allreduce", Verb: "allreduce", Chunks: true, Run: allReduce[T]},
		{Name: "allreduce out of place", Verb: "allreduce", Chunks: true, Run: allReduceTo[T]},
		{Name: "iallreduce", Verb: "allreduce", Chunks: true, Run: iAllReduce[T]},
		{Name: "reduce to the last", Verb: "reduce", Chunks: true, Run: reduceTo[T](last)},
		{Name: "reduce in place", Verb: "reduce", Chunks: true, Run: reduceInPlace[T]},
		{Name: "reduce_scatter", Verb: "reduce_scatter", Chunks: true, Run: reduceScatter[T]},
		{Name: "reduce_scatter in place", Verb: "reduce_scatter", Chunks: true, Run: reduceScatterInPlace[T]},
		{Name: "reduce_scatterv", Verb: "reduce_scatterv", Run: reduceScatterV[T]},
		{Name: "scan", Verb: "scan", Run: scan[T]},
		{Name: "scan out of place", Verb: "scan", Run: scanTo[T]},
		{Name: "exscan", Verb: "exscan", Run: exScan[T]},
		{Name: "exscan out of place", Verb: "exscan", Run: exScanTo[T]},
	}
}

func allReduce[T number](ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
	buf := track(bt, vector[T](c.Rank(), count))
	if err := comm.AllReduce(ctx, c, buf, comm.Sum); err != nil {
		return err
	}
	return same("buf", buf, sums[T](c.Size(), count))
}

// Lists returns a call that reduces a list of vectors by the given algorithm. Some vectors are
// empty, and some share a segment with others. If the algorithm is "", the call uses the forced
// algorithm.
func Lists[T number](algorithm string) Call {
	return Call{Name: "allreduce of a list", Verb: "allreduce", Chunks: true, Run: func(ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
		return allReduceList[T](ctx, c, algorithm, count, bt)
	}}
}

func allReduceList[T number](ctx context.Context, c *comm.Comm, algorithm string, count int, bt *BufferTracker) error {
	buf := track(bt, vector[T](c.Rank(), count))
	var list [][]byte
	for rest, n := buf, 0; len(rest) > 0; n = 3*n + 1 {
		n = min(n, len(rest))
		list = append(list, tensor.Bytes(rest[:n]))
		rest = rest[n:]
	}
	if algorithm == "" {
		algorithm = c.Algorithm("allreduce", len(tensor.Bytes(buf)))
	}
	if err := c.Bridge().AllReduceList(ctx, algorithm, tensor.TypeOf[T](), list, comm.Sum); err != nil {
		return err
	}
	return same("the list", buf, sums[T](c.Size(), count))
}

func allReduceTo[T number](ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
	src, dst := track(bt, vector[T](c.Rank(), count)), track(bt, make([]T, count))
	err := comm.AllReduce(ctx, c, dst, comm.Sum, comm.From(src))
	if e := same("src", src, vector[T](c.Rank(), count)); e != nil {
		return e
	}
	if err != nil {
		return err
	}
	return same("dst", dst, sums[T](c.Size(), count))
}

// iAllReduce has two sums under way at the same time.
func iAllReduce[T number](ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
	a, b := track(bt, vector[T](c.Rank(), count)), track(bt, vector[T](c.Rank()+1, count))
	ra, rb := comm.IAllReduce(c, a, comm.Sum), comm.IAllReduce(c, b, comm.Max)
	_, errB := rb.Wait(ctx)
	_, errA := ra.Wait(ctx)
	if errA == nil {
		if err := same("the first buf", a, sums[T](c.Size(), count)); err != nil {
			return err
		}
	}
	if errB == nil {
		if err := same("the second buf", b, maxima[T](1, c.Size(), count)); err != nil {
			return err
		}
	}
	if errA != nil {
		return errA
	}
	return errB
}

// maxima returns the element-wise maximum of the vectors of n ranks, from rank r on.
func maxima[T number](r, n, count int) []T {
	return repeating[T](count, func(i int) int {
		most := value(r, i)
		for k := range n {
			most = max(most, value(r+k, i))
		}
		return most
	})
}

func reduceTo[T number](root rootChoice) runFunc {
	return func(ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
		root := root(c.Size())
		src, dst := track(bt, vector[T](c.Rank(), count)), track(bt, make([]T, count))
		err := comm.Reduce(ctx, c, dst, comm.Sum, root, comm.From(src))
		if e := same("src", src, vector[T](c.Rank(), count)); e != nil {
			return e
		}
		if c.Rank() != root {
			if e := same("dst elsewhere", dst, make([]T, count)); e != nil {
				return e
			}
			return err
		}
		if err != nil {
			return err
		}
		return same("dst", dst, sums[T](c.Size(), count))
	}
}

func reduceInPlace[T number](ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
	buf := track(bt, vector[T](c.Rank(), count))
	err := comm.Reduce(ctx, c, buf, comm.Sum, 0)
	if err != nil || c.Rank() != 0 {
		return err
	}
	return same("buf", buf, sums[T](c.Size(), count))
}

func reduceScatter[T number](ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
	lo, hi := tensor.Chunk(count, c.Size(), c.Rank())
	src, dst := track(bt, vector[T](c.Rank(), count)), track(bt, make([]T, hi-lo))
	err := comm.ReduceScatter(ctx, c, dst, comm.Sum, comm.From(src))
	if e := same("src", src, vector[T](c.Rank(), count)); e != nil {
		return e
	}
	if err != nil {
		return err
	}
	return same("dst", dst, sums[T](c.Size(), count)[lo:hi])
}

// reduceScatterInPlace must change this rank's chunk, and no other chunk.
func reduceScatterInPlace[T number](ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
	lo, hi := tensor.Chunk(count, c.Size(), c.Rank())
	buf := track(bt, vector[T](c.Rank(), count))
	if err := comm.ReduceScatter(ctx, c, buf, comm.Sum); err != nil {
		return err
	}
	want := vector[T](c.Rank(), count)
	copy(want[lo:hi], sums[T](c.Size(), count)[lo:hi])
	return same("buf", buf, want)
}

func reduceScatterV[T number](ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
	counts, total := unequal(c.Size(), count)
	lo, hi := offset(counts, c.Rank())
	src, dst := track(bt, vector[T](c.Rank(), total)), track(bt, make([]T, hi-lo))
	err := comm.ReduceScatter(ctx, c, dst, comm.Sum, comm.From(src), comm.Counts(counts))
	if e := same("src", src, vector[T](c.Rank(), total)); e != nil {
		return e
	}
	if err != nil {
		return err
	}
	return same("dst", dst, sums[T](c.Size(), total)[lo:hi])
}

func scan[T number](ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
	buf := track(bt, vector[T](c.Rank(), count))
	if err := comm.Scan(ctx, c, buf, comm.Sum); err != nil {
		return err
	}
	return same("buf", buf, sums[T](c.Rank()+1, count))
}

func scanTo[T number](ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
	src, dst := track(bt, vector[T](c.Rank(), count)), track(bt, make([]T, count))
	err := comm.Scan(ctx, c, dst, comm.Max, comm.From(src))
	if e := same("src", src, vector[T](c.Rank(), count)); e != nil {
		return e
	}
	if err != nil {
		return err
	}
	return same("dst", dst, maxima[T](0, c.Rank()+1, count))
}

func exScan[T number](ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
	buf := track(bt, vector[T](c.Rank(), count))
	if err := comm.ExScan(ctx, c, buf, comm.Sum); err != nil {
		return err
	}
	return same("buf", buf, sums[T](max(1, c.Rank()), count)) // rank 0's buffer stays unchanged
}

func exScanTo[T number](ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
	src, dst := track(bt, vector[T](c.Rank(), count)), track(bt, vector[T](7, count))
	err := comm.ExScan(ctx, c, dst, comm.Sum, comm.From(src))
	if e := same("src", src, vector[T](c.Rank(), count)); e != nil {
		return e
	}
	if err != nil {
		return err
	}
	want := sums[T](c.Rank(), count)
	if c.Rank() == 0 {
		want = vector[T](7, count) // unchanged
	}
	return same("dst", dst, want)
}
