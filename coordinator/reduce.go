package coordinator

import (
	"context"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator/negotiate"
)

// A layout says where the tensors of a Bucket lie in one vector: for each rank r,
// chunk r of every tensor, one after the other. So each element is in the chunk
// of the same rank, and is folded in the same order, whatever its tensor was
// fused with.
//
//	tensors a, b of 3 and 2 elements, two ranks:  a0 a1 b0 | a2 b1
type layout struct {
	b      *negotiate.Bucket
	items  []item
	counts []int // elements of each rank's chunk
}

func (x *executor) layout(b *negotiate.Bucket, items []item, n int) layout {
	l := layout{b, items, x.perRank(n)}
	for i := range items {
		lo, hi := items[i].elements(b)
		for r := range n {
			from, to := negotiate.Chunk(hi-lo, n, r)
			l.counts[r] += to - from
		}
	}
	return l
}

// each calls f for every piece: the elements from up to to of an item, that lie
// from element at on in the vector.
func (l *layout) each(f func(it *item, from, to, at int)) {
	at := 0
	n := len(l.counts)
	for r := range n {
		for i := range l.items {
			lo, hi := l.items[i].elements(l.b)
			from, to := negotiate.Chunk(hi-lo, n, r)
			f(&l.items[i], lo+from, lo+to, at)
			at += to - from
		}
	}
}

// allReduce reduces a Bucket: every rank folds its chunk, then all gather. One
// tensor alone is reduced where it lies; its chunks are the layout already.
func (x *executor) allReduce(ctx context.Context, s *members, b *negotiate.Bucket, items []item, givers int) error {
	t := items[0].Tensor
	l := x.layout(b, items, len(s.ranks))
	if len(items) == 1 && items[0].h != nil && t.Wire == t.DType {
		lo, hi := items[0].elements(b)
		buf := items[0].h.dst[lo*t.DType.Size() : hi*t.DType.Size()]
		scale(t.DType, buf, t.Pre)
		err := x.fold(ctx, s, &items[0], l.counts, buf, givers)
		scale(t.DType, buf, t.Post)
		return err
	}
	buf := x.pack(&l)
	x.lap.packed = x.co.stamp()
	if err := x.fold(ctx, s, &items[0], l.counts, buf, givers); err != nil {
		return err
	}
	x.lap.wired = x.co.stamp()
	l.unpack(buf)
	return nil
}

// pack lays a Bucket out in memory of the executor's, scaled and as it travels;
// where this rank is absent, the identity.
func (x *executor) pack(l *layout) []byte {
	t := l.items[0].Tensor
	es, ws := t.DType.Size(), t.Wire.Size()
	total := 0
	for _, c := range l.counts {
		total += c * ws
	}
	buf := x.stage(0, total)
	if l.items[0].h == nil { // it is alone: absent ranks fuse nothing
		identity(t.OpID, t.Wire, buf)
		return buf
	}
	l.each(func(it *item, from, to, at int) {
		piece := buf[at*ws : (at+to-from)*ws]
		if t.Wire != t.DType {
			narrow(t.Wire, piece, t.DType, it.h.src[from*es:to*es], it.Tensor.Pre)
			return
		}
		copy(piece, it.h.src[from*es:to*es])
		scale(t.DType, piece, it.Tensor.Pre)
	})
	return buf
}

// unpack gives every tensor its result.
func (l *layout) unpack(buf []byte) {
	t := l.items[0].Tensor
	es, ws := t.DType.Size(), t.Wire.Size()
	l.each(func(it *item, from, to, at int) {
		if it.h == nil {
			return
		}
		piece, dst := buf[at*ws:(at+to-from)*ws], it.h.dst[from*es:to*es]
		if t.Wire != t.DType {
			widen(t.DType, dst, t.Wire, piece)
			scale(t.DType, dst, it.Tensor.Post)
			return
		}
		copy(dst, piece)
		scale(t.DType, dst, it.Tensor.Post)
	})
}

// fold reduces buf, cut into counts, on all ranks of s. A mean's division is done
// once for each element, by its chunk's owner.
func (x *executor) fold(ctx context.Context, s *members, it *item, counts []int, buf []byte, givers int) error {
	t := it.Tensor
	ws, me := t.Wire.Size(), s.c.Rank()
	at := 0
	for _, c := range counts[:me] {
		at += c * ws
	}
	own := buf[at : at+counts[me]*ws]
	kind := elementOf(t.Wire)
	if err := kind.reduceScatterV(ctx, s.c, own, buf, counts, it.wireOp()); err != nil {
		return err
	}
	divide(t, own, givers)
	return kind.allGatherV(ctx, s.c, buf, own, counts)
}

// wireOp is the operator that is folded with: a mean's division comes later, by
// the number of ranks that took part.
func (it *item) wireOp() comm.Op {
	op, known := builtin(it.Tensor.OpID)
	switch {
	case !known: // then nobody is absent
		return it.h.op
	case it.Tensor.OpID == comm.Mean.ID():
		return comm.Sum
	}
	return op
}

// divide makes a sum a mean, if that is what is wanted.
func divide(t *negotiate.Tensor, own []byte, givers int) {
	if t.OpID != comm.Mean.ID() {
		return
	}
	if k, err := comm.Mean.Kernel(t.Wire); err == nil {
		k.Finish(own, givers)
	}
}

// reduceScatter leaves this rank's rows in dst.
func (x *executor) reduceScatter(ctx context.Context, s *members, it item, givers int) error {
	t := it.Tensor
	n, row := len(s.ranks), rowBytes(t)/t.DType.Size()
	counts := x.perRank(n)
	for r := range n {
		lo, hi := negotiate.Chunk(t.Shape[0], n, r)
		counts[r] = (hi - lo) * row
	}
	var src, dst []byte
	switch {
	case it.h == nil:
		src = x.stage(0, t.Bytes())
		identity(t.OpID, t.DType, src)
		dst = x.stage(1, counts[s.c.Rank()]*t.DType.Size())
	case t.Pre != 1:
		src, dst = x.stage(0, t.Bytes()), it.h.dst
		copy(src, it.h.src)
		scale(t.DType, src, t.Pre)
	default:
		src, dst = it.h.src, it.h.dst
	}
	if err := elementOf(t.DType).reduceScatterV(ctx, s.c, dst, src, counts, it.wireOp()); err != nil {
		return err
	}
	divide(t, dst, givers)
	scale(t.DType, dst, t.Post)
	return nil
}
