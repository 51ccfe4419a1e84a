package worldtest

import (
	"context"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/tensor"
)

// Persistent returns a call for each persistent collective. The call starts the collective twice.
// Between the starts it clears the output and writes the input again.
func Persistent[T number]() []Call {
	return []Call{
		{Name: "persistent barrier", Verb: "barrier", Run: persist(barrierInit[T])},
		{Name: "persistent broadcast", Verb: "broadcast", Run: persist(broadcastInit[T])},
		{Name: "persistent allreduce", Verb: "allreduce", Chunks: true, Run: persist(allReduceInit[T])},
		{Name: "persistent allreduce out of place", Verb: "allreduce", Chunks: true, Run: persist(allReduceToInit[T])},
		{Name: "persistent reduce", Verb: "reduce", Chunks: true, Run: persist(reduceInit[T])},
		{Name: "persistent reduce_scatter", Verb: "reduce_scatter", Chunks: true, Run: persist(reduceScatterInit[T])},
		{Name: "persistent reduce_scatterv", Verb: "reduce_scatterv", Run: persist(reduceScatterVInit[T])},
		{Name: "persistent allgather", Verb: "allgather", Run: persist(allGatherInit[T])},
		{Name: "persistent allgatherv", Verb: "allgatherv", Run: persist(allGatherVInit[T])},
		{Name: "persistent gather", Verb: "gather", Run: persist(gatherInit[T])},
		{Name: "persistent gatherv", Verb: "gatherv", Run: persist(gatherVInit[T])},
		{Name: "persistent scatter", Verb: "scatter", Run: persist(scatterInit[T])},
		{Name: "persistent scatterv", Verb: "scatterv", Run: persist(scatterVInit[T])},
		{Name: "persistent alltoall", Verb: "alltoall", Run: persist(allToAllInit[T])},
		{Name: "persistent alltoallv", Verb: "alltoallv", Run: persist(allToAllVInit[T])},
		{Name: "persistent scan", Verb: "scan", Run: persist(scanInit[T])},
		{Name: "persistent scan out of place", Verb: "scan", Run: persist(scanToInit[T])},
		{Name: "persistent exscan", Verb: "exscan", Run: persist(exScanInit[T])},
		{Name: "persistent exscan out of place", Verb: "exscan", Run: persist(exScanToInit[T])},
	}
}

// A persistentCase is a persistent collective with its buffers.
type persistentCase[T number] struct {
	c          *comm.Comm
	n, me      int
	count      int
	input, src []T // the contents of src before a start
	dst        []T // empty if the rank receives nothing
	want       []T // the contents of dst afterwards, if dst is not empty
}

// persist returns the function Run of a Call. The function setUp sets up its persistentCase.
func persist[T number](setUp func(d *persistentCase[T]) *comm.Request) runFunc {
	return func(ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
		d := &persistentCase[T]{c: c, n: c.Size(), me: c.Rank(), count: count}
		r := setUp(d)
		defer r.Free()
		track(bt, d.src)
		track(bt, d.dst)
		for range 2 {
			clear(d.dst)
			copy(d.src, d.input)
			if err := r.Start(ctx); err != nil {
				return err
			}
			if _, err := r.Wait(ctx); err != nil {
				return err
			}
			if err := same("dst", d.dst, d.want); err != nil {
				return err
			}
		}
		return nil
	}
}

// outOfPlace makes two buffers and sets them up.
func (d *persistentCase[T]) outOfPlace(in, want []T) (dst, src []T) {
	d.input, d.want, d.src, d.dst = in, want, make([]T, len(in)), make([]T, len(want))
	return d.dst, d.src
}

// onRoot returns v on the root, and nil on other ranks.
func (d *persistentCase[T]) onRoot(root int, v []T) []T {
	if d.me != root {
		return nil
	}
	return v
}

func barrierInit[T number](d *persistentCase[T]) *comm.Request {
	return d.c.IBarrier(comm.Persistent())
}

// inPlace sets up one buffer for input and output.
func (d *persistentCase[T]) inPlace(in, want []T) []T {
	buf := make([]T, len(in))
	d.input, d.want, d.src, d.dst = in, want, buf, buf
	return buf
}

func broadcastInit[T number](d *persistentCase[T]) *comm.Request {
	root := d.n - 1
	return comm.IBroadcast(d.c, d.inPlace(vector[T](d.me, d.count), vector[T](root, d.count)), root, comm.Persistent())
}

func allReduceInit[T number](d *persistentCase[T]) *comm.Request {
	return comm.IAllReduce(d.c, d.inPlace(vector[T](d.me, d.count), sums[T](d.n, d.count)), comm.Sum, comm.Persistent())
}

func allReduceToInit[T number](d *persistentCase[T]) *comm.Request {
	dst, src := d.outOfPlace(vector[T](d.me, d.count), sums[T](d.n, d.count))
	return comm.IAllReduce(d.c, dst, comm.Sum, comm.From(src), comm.Persistent())
}

func reduceInit[T number](d *persistentCase[T]) *comm.Request {
	root := d.n / 2
	dst, src := d.outOfPlace(vector[T](d.me, d.count), d.onRoot(root, sums[T](d.n, d.count)))
	return comm.IReduce(d.c, dst, comm.Sum, root, comm.From(src), comm.Persistent())
}

func reduceScatterInit[T number](d *persistentCase[T]) *comm.Request {
	lo, hi := tensor.Chunk(d.count, d.n, d.me)
	dst, src := d.outOfPlace(vector[T](d.me, d.count), sums[T](d.n, d.count)[lo:hi])
	return comm.IReduceScatter(d.c, dst, comm.Sum, comm.From(src), comm.Persistent())
}

func reduceScatterVInit[T number](d *persistentCase[T]) *comm.Request {
	counts, total := unequal(d.n, d.count)
	lo, hi := offset(counts, d.me)
	dst, src := d.outOfPlace(vector[T](d.me, total), sums[T](d.n, total)[lo:hi])
	return comm.IReduceScatter(d.c, dst, comm.Sum, comm.From(src), comm.Counts(counts), comm.Persistent())
}

func allGatherInit[T number](d *persistentCase[T]) *comm.Request {
	dst, src := d.outOfPlace(vector[T](d.me, d.count), concatenated[T](d.n, d.count))
	return comm.IAllGather(d.c, dst, comm.From(src), comm.Persistent())
}

// part returns this rank's part of the whole vector, the whole vector, and all ranks' counts.
func (d *persistentCase[T]) part() (mine, all []T, counts []int) {
	counts, total := unequal(d.n, d.count)
	lo, hi := offset(counts, d.me)
	all = fullVector[T](total)
	return all[lo:hi], all, counts
}

func allGatherVInit[T number](d *persistentCase[T]) *comm.Request {
	mine, all, counts := d.part()
	dst, src := d.outOfPlace(mine, all)
	r := comm.IAllGather(d.c, dst, comm.From(src), comm.Counts(counts), comm.Persistent())
	clear(counts) // the request has copied the counts
	return r
}

func gatherInit[T number](d *persistentCase[T]) *comm.Request {
	dst, src := d.outOfPlace(vector[T](d.me, d.count), d.onRoot(0, concatenated[T](d.n, d.count)))
	return comm.IGather(d.c, dst, 0, comm.From(src), comm.Persistent())
}

func gatherVInit[T number](d *persistentCase[T]) *comm.Request {
	mine, all, counts := d.part()
	dst, src := d.outOfPlace(mine, d.onRoot(d.n-1, all))
	return comm.IGather(d.c, dst, d.n-1, comm.From(src), comm.Counts(counts), comm.Persistent())
}

func scatterInit[T number](d *persistentCase[T]) *comm.Request {
	dst, src := d.outOfPlace(d.onRoot(0, concatenated[T](d.n, d.count)), vector[T](d.me, d.count))
	return comm.IScatter(d.c, dst, 0, comm.From(src), comm.Persistent())
}

func scatterVInit[T number](d *persistentCase[T]) *comm.Request {
	mine, all, counts := d.part()
	dst, src := d.outOfPlace(d.onRoot(d.n-1, all), mine)
	return comm.IScatter(d.c, dst, d.n-1, comm.From(src), comm.Counts(counts), comm.Persistent())
}

func allToAllInit[T number](d *persistentCase[T]) *comm.Request {
	out, in := allToAllVectors[T](d.n, d.me, d.count)
	dst, src := d.outOfPlace(out, in)
	return comm.IAllToAll(d.c, dst, comm.From(src), comm.Persistent())
}

func allToAllVInit[T number](d *persistentCase[T]) *comm.Request {
	some := func(from, to int) int { return (from*d.n + to + d.count) % 7 * (d.count/7 + 1) }
	sends, recvs := make([]int, d.n), make([]int, d.n)
	var out, in []T
	for r := range d.n {
		sends[r], recvs[r] = some(d.me, r), some(r, d.me)
		out = append(out, vector[T](d.me*d.n+r, sends[r])...)
		in = append(in, vector[T](r*d.n+d.me, recvs[r])...)
	}
	dst, src := d.outOfPlace(out, in)
	return comm.IAllToAll(d.c, dst, comm.From(src), comm.Counts(recvs), comm.SendCounts(sends), comm.Persistent())
}

func scanInit[T number](d *persistentCase[T]) *comm.Request {
	return comm.IScan(d.c, d.inPlace(vector[T](d.me, d.count), sums[T](d.me+1, d.count)), comm.Sum, comm.Persistent())
}

func scanToInit[T number](d *persistentCase[T]) *comm.Request {
	dst, src := d.outOfPlace(vector[T](d.me, d.count), maxima[T](0, d.me+1, d.count))
	return comm.IScan(d.c, dst, comm.Max, comm.From(src), comm.Persistent())
}

func exScanInit[T number](d *persistentCase[T]) *comm.Request {
	// Rank 0's buffer stays unchanged.
	return comm.IExScan(d.c, d.inPlace(vector[T](d.me, d.count), sums[T](max(1, d.me), d.count)), comm.Sum, comm.Persistent())
}

func exScanToInit[T number](d *persistentCase[T]) *comm.Request {
	// Rank 0's output stays cleared.
	dst, src := d.outOfPlace(vector[T](d.me, d.count), sums[T](d.me, d.count))
	return comm.IExScan(d.c, dst, comm.Sum, comm.From(src), comm.Persistent())
}
