package worldtest

import (
	"context"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/tensor"
)

// The forms that reduce.

func allReduce[T number](o *operation[T]) { o.inPlace(o.own(), sums[T](o.n, o.count)) }

func allReduceTo[T number](o *operation[T]) { o.outOfPlace(o.own(), sums[T](o.n, o.count)) }

func reduceTo[T number](o *operation[T]) {
	if o.me == o.root {
		o.outOfPlace(o.own(), sums[T](o.n, o.count))
		return
	}
	o.outOfPlace(o.own(), make([]T, o.count))
	o.kept = true
}

func reduceInPlace[T number](o *operation[T]) {
	o.inPlace(o.own(), o.onRoot(sums[T](o.n, o.count)))
}

func reduceScatter[T number](o *operation[T]) {
	lo, hi := tensor.Chunk(o.count, o.n, o.me)
	o.outOfPlace(o.own(), sums[T](o.n, o.count)[lo:hi])
}

// reduceScatterInPlace must change this rank's chunk, and no other chunk.
func reduceScatterInPlace[T number](o *operation[T]) {
	lo, hi := tensor.Chunk(o.count, o.n, o.me)
	want := o.own()
	copy(want[lo:hi], sums[T](o.n, o.count)[lo:hi])
	o.inPlace(o.own(), want)
}

func reduceScatterV[T number](o *operation[T]) {
	counts, total := unequal(o.n, o.count)
	lo, hi := offset(counts, o.me)
	o.outOfPlace(vector[T](o.me, total), sums[T](o.n, total)[lo:hi])
	o.setCounts(counts)
}

func scan[T number](o *operation[T]) { o.inPlace(o.own(), sums[T](o.me+1, o.count)) }

func scanTo[T number](o *operation[T]) {
	o.op = comm.Max
	o.outOfPlace(o.own(), maxima[T](0, o.me+1, o.count))
}

// Rank 0's output stays unchanged.
func exScan[T number](o *operation[T]) { o.inPlace(o.own(), sums[T](max(1, o.me), o.count)) }

func exScanTo[T number](o *operation[T]) {
	o.outOfPlace(o.own(), sums[T](o.me, o.count))
	if o.before = vector[T](7, o.count); o.me == 0 {
		o.want = o.before // unchanged
	}
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
		algorithm = c.Bridge().Algorithm("allreduce", len(tensor.Bytes(buf)), comm.Sum)
	}
	if err := c.Bridge().AllReduceList(ctx, algorithm, tensor.TypeOf[T](), list, comm.Sum); err != nil {
		return err
	}
	return same("the list", buf, sums[T](c.Size(), count))
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
