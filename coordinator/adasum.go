package coordinator

import (
	"context"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
)

// Adasum is an operator of AllReduce for gradients of float32 and float64. They are summed as far
// as they point in different directions, and averaged as far as they agree:
//
//	adasum(a, b) = (1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b
//
// So a learning rate need not change with the number of ranks. Orthogonal gradients are added; the
// result of equal ones is one of them. More than two are combined in a tree: neighbors in the order
// of the ranks, then their results, and so on; one without a neighbor goes up as it is. The
// products are of whole tensors, summed in float64. So a tensor is never cut into parts, and its
// result does not depend on what it is fused with. Ranks that have joined contribute zeros, which
// change nothing.
//
// Collectives of package comm refuse it, since they would cut vectors into chunks.
//
// Source: Maleki, Musuvathi, Mytkowicz, Saarikivi, Xu, Eksarevskiy, Ekanayake and Barsoum, "Scaling
// Distributed Training with Adaptive Summation", MLSys 2021. The tree, which needs no power of two,
// is as there and as in Horovod.
var Adasum = reduce.Func[float32]("coordinator.Adasum", reduce.Commutative, nil)

// adasum combines a Bucket. Rank r gets every rank's chunk r, so that each element is combined
// once, on one rank. The tree also needs three products for each pair and tensor, over all chunks;
// they are gathered level by level.
//
// Cost, n ranks and m bytes: about m sent and received twice, as for a sum, and log n small
// allgathers.
func (x *executor) adasum(ctx context.Context, s *setComm, items []item) error {
	n, me := len(s.ranks), s.c.Rank()
	l := layout{items, n}
	buf := x.pack(&l)
	x.times.packed = x.co.timestamp()
	shares := x.scratchBuffer(1, len(buf))
	if err := comm.AllToAll(ctx, s.c, shares, comm.From(buf)); err != nil {
		return err
	}
	lengths := make([]int, len(items)) // of each tensor's piece of a chunk, with the zeros after it
	for i := range items {
		lengths[i] = l.chunkWidth(&items[i])
	}
	combine := adasumTree[float32]
	if items[0].Spec.DType == tensor.Float64 {
		combine = adasumTree[float64]
	}
	if err := combine(ctx, s.c, shares, lengths); err != nil {
		return err
	}
	own := buf[me*len(buf)/n : (me+1)*len(buf)/n]
	copy(own, shares)
	if err := comm.AllGather(ctx, s.c, buf, comm.From(own)); err != nil {
		return err
	}
	x.times.transferred = x.co.timestamp()
	l.unpack(buf)
	return nil
}

// adasumTree combines the ranks' shares, one after the other in raw, into the first one. Each share
// consists of pieces of these lengths, one of each tensor.
func adasumTree[T float32 | float64](ctx context.Context, c *comm.Comm, raw []byte, lengths []int) error {
	all := tensor.Elements[T](raw)
	shares := make([][]T, c.Size())
	size := len(all) / len(shares)
	for r := range shares {
		shares[r] = all[r*size : (r+1)*size]
	}
	for len(shares) > 1 {
		// Each rank has the products over its chunk of every tensor. Their sums over the ranks are
		// the products over the whole tensors.
		dots := products(shares, lengths)
		gathered := make([]float64, c.Size()*len(dots))
		if err := comm.AllGather(ctx, c, gathered, comm.From(dots)); err != nil {
			return err
		}
		clear(dots)
		for i, v := range gathered { // in rank order, so the sums are equal on all ranks
			dots[i%len(dots)] += v
		}
		// The next level has half as many shares; one without a neighbor goes up as it is.
		up := shares[:0]
		for p := 0; p < len(shares); p += 2 {
			if p+1 < len(shares) {
				combine(shares[p], shares[p+1], lengths, dots[3*len(lengths)*p/2:])
			}
			up = append(up, shares[p])
		}
		shares = up
	}
	return nil
}

// products are a·b, a·a and b·b for each pair of neighbors and each piece.
func products[T float32 | float64](shares [][]T, lengths []int) (dots []float64) {
	for p := 0; p+1 < len(shares); p += 2 {
		at := 0
		for _, n := range lengths {
			var ab, aa, bb float64
			a, b := shares[p][at:at+n], shares[p+1][at:at+n]
			for i := range a {
				x, y := float64(a[i]), float64(b[i])
				ab += x * y
				aa += x * x
				bb += y * y
			}
			dots = append(dots, ab, aa, bb)
			at += n
		}
	}
	return dots
}

// combine leaves adasum(a, b) in a, piece by piece. Each element is rounded once.
func combine[T float32 | float64](a, b []T, lengths []int, dots []float64) {
	at := 0
	for k, n := range lengths {
		ab, aa, bb := dots[3*k], dots[3*k+1], dots[3*k+2]
		ca, cb := adasumFactor(ab, aa), adasumFactor(ab, bb)
		for i := at; i < at+n; i++ {
			a[i] = T(float64(ca*float64(a[i])) + float64(cb*float64(b[i])))
		}
		at += n
	}
}

// adasumFactor is the factor of a vector with this square. It is 1 for zeros, which have no
// direction.
func adasumFactor(ab, square float64) float64 {
	if square == 0 {
		return 1
	}
	return 1 - ab/(2*square)
}
