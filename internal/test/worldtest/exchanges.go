package worldtest

import "github.com/tutti-go/tutti/comm"

// The forms that do not reduce.

func broadcast[T number](o *operation[T]) { o.inPlace(o.own(), vector[T](o.root, o.count)) }

func gather[T number](o *operation[T]) {
	o.outOfPlace(o.own(), o.onRoot(concatenated[T](o.n, o.count)))
}

// gatherInPlace is for rank 0 as the root.
func gatherInPlace[T number](o *operation[T]) {
	in := o.own()
	if o.me != o.root {
		o.inPlace(in, in)
		return
	}
	o.inPlace(append(in, make([]T, (o.n-1)*o.count)...), concatenated[T](o.n, o.count))
}

func scatter[T number](o *operation[T]) {
	o.outOfPlace(o.onRoot(concatenated[T](o.n, o.count)), o.own())
}

func scatterInPlace[T number](o *operation[T]) {
	if all := o.onRoot(concatenated[T](o.n, o.count)); all != nil {
		o.inPlace(all, all) // unchanged
	} else {
		o.inPlace(make([]T, o.count), o.own())
	}
}

func allGather[T number](o *operation[T]) { o.outOfPlace(o.own(), concatenated[T](o.n, o.count)) }

func allGatherInPlace[T number](o *operation[T]) {
	in := make([]T, o.n*o.count)
	copy(in[o.me*o.count:], o.own())
	o.inPlace(in, concatenated[T](o.n, o.count))
}

// allToAllVectors returns what rank me sends to each of n ranks, and what it receives from them.
func allToAllVectors[T number](n, me, count int) (out, in []T) {
	for r := range n {
		out = append(out, vector[T](me*n+r, count)...)
		in = append(in, vector[T](r*n+me, count)...)
	}
	return out, in
}

func allToAll[T number](o *operation[T]) { o.outOfPlace(allToAllVectors[T](o.n, o.me, o.count)) }

func allToAllInPlace[T number](o *operation[T]) { o.inPlace(allToAllVectors[T](o.n, o.me, o.count)) }

func allToAllV[T number](o *operation[T]) {
	some := func(from, to int) int { return (from*o.n + to + o.count) % 7 * (o.count/7 + 1) }
	sends, recvs := make([]int, o.n), make([]int, o.n)
	var out, in []T
	for r := range o.n {
		sends[r], recvs[r] = some(o.me, r), some(r, o.me)
		out = append(out, vector[T](o.me*o.n+r, sends[r])...)
		in = append(in, vector[T](r*o.n+o.me, recvs[r])...)
	}
	o.outOfPlace(out, in)
	o.setCounts(recvs)
	o.opts = append(o.opts, comm.SendCounts(sends))
}

func allGatherV[T number](o *operation[T]) { o.outOfPlace(o.part()) }

func allGatherVInPlace[T number](o *operation[T]) {
	mine, all := o.part()
	in := make([]T, len(all))
	lo, _ := offset(o.counts, o.me)
	copy(in[lo:], mine)
	o.inPlace(in, all)
}

func gatherV[T number](o *operation[T]) {
	mine, all := o.part()
	o.outOfPlace(mine, o.onRoot(all))
}

func scatterV[T number](o *operation[T]) {
	mine, all := o.part()
	o.outOfPlace(o.onRoot(all), mine)
}
