package coordinator

import (
	"context"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
)

// Adasum is an AllReduce operator for gradients of type float32 or float64. It adds the components
// of two gradients that point in different directions, and averages the components that agree:
//
//	adasum(a, b) = (1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b
//
// The learning rate therefore need not change with the number of ranks. The result of orthogonal
// gradients is their sum. The result of equal gradients is that same gradient. More than two
// gradients are combined in a tree: first the gradients of neighboring ranks, then the results of
// neighboring pairs, and so on. At each level, a vector without a neighbor goes up unchanged. The
// scalar products are taken over whole tensors and summed in float64. Therefore a tensor is never
// cut into parts. Its result does not depend on the other tensors in its Bucket. Ranks that have
// joined contribute zeros, which do not change the result.
//
// The collectives of package comm refuse Adasum, since they would cut vectors into chunks.
//
// Source: Maleki, Musuvathi, Mytkowicz, Saarikivi, Xu, Eksarevskiy, Ekanayake and Barsoum, "Scaling
// Distributed Training with Adaptive Summation", MLSys 2021. The paper and Horovod use the same
// tree. The number of ranks need not be a power of two.
var Adasum = reduce.Func[float32]("coordinator.Adasum", reduce.Commutative, nil)

// adasum reduces a Bucket with Adasum. An all-to-all gives rank r chunk r of every rank's vector.
// These chunks are the shares that rank r combines in the tree that Adasum describes. So each
// element is combined on one rank only. Each level of the tree needs three scalar products for each
// pair of shares and each tensor. They are taken over whole tensors: each rank computes the
// products over its own chunk, and an allgather at each level collects the products of all ranks. A
// last allgather collects the results.
//
// Cost, n ranks and m bytes: each rank sends and receives about m bytes twice, as for a sum, and
// takes part in about log n small allgathers.
func (x *executor) adasum(ctx context.Context, s *setComm, items []item) error {
	n, me := len(s.ranks), s.c.Rank()
	l := layout{items, n}
	buf := x.pack(&l)
	x.times.packed = x.co.timestamp()
	shares := x.scratchBuffer(1, len(buf))
	if err := comm.AllToAll(ctx, s.c, shares, comm.From(buf)); err != nil {
		return err
	}
	// lengths holds, for each tensor, the number of its elements in a chunk, including padding
	// zeros.
	lengths := make([]int, len(items))
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

// adasumTree combines the ranks' shares into the first share. The shares are one after the other in
// raw. Each share consists of one piece for each tensor. The parameter lengths holds the lengths of
// the pieces.
func adasumTree[T float32 | float64](ctx context.Context, c *comm.Comm, raw []byte, lengths []int) error {
	all := tensor.Elements[T](raw)
	shares := make([][]T, c.Size())
	size := len(all) / len(shares)
	for r := range shares {
		shares[r] = all[r*size : (r+1)*size]
	}
	for len(shares) > 1 {
		// Each rank has the products over its own chunk of every tensor. The sums of these products
		// over the ranks are the products over whole tensors.
		dots := products(shares, lengths)
		gathered := make([]float64, c.Size()*len(dots))
		if err := comm.AllGather(ctx, c, gathered, comm.From(dots)); err != nil {
			return err
		}
		clear(dots)
		for i, v := range gathered { // in rank order, so the sums are equal on all ranks
			dots[i%len(dots)] += v
		}
		// The next level has half as many shares. A share without a neighbor goes up unchanged.
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

// products returns a·b, a·a and b·b for each pair of neighbors and each piece.
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

// combine stores adasum(a, b) in a, piece by piece. Each element is rounded once.
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

// adasumFactor returns the factor of a vector, from a·b and the vector's scalar square. The factor
// of a zero vector, which has no direction, is 1.
func adasumFactor(ab, square float64) float64 {
	if square == 0 {
		return 1
	}
	return 1 - ab/(2*square)
}
