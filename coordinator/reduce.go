package coordinator

import (
	"context"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator/negotiate"
	"github.com/tutti-go/tutti/internal/compress"
	"github.com/tutti-go/tutti/tensor"
)

// algorithmOf returns the algorithms of a process set's allreduces. The choice does not depend on
// the size of a tensor. So the result of a tensor has the same bits whatever other tensors are in
// its Bucket.
//
// The first result, folds, is the algorithm that the table names for large vectors, if the order in
// which it folds an element depends only on the element's chunk. The layout puts every element into
// the same chunk, whether the tensor is fused or not. For other algorithms, folds is "", and
// foldByReduceScatter is used.
//
// The second result, vector, is the algorithm for one contiguous vector. It folds in the same order
// as the first result. The two differ if the table names the segmented ring: folds is then the
// ring, and vector the segmented ring, which gives the same bits and forwards segments while they
// are in the cache.
func algorithmOf(c *comm.Comm) (folds, vector string) {
	switch name := c.Bridge().Algorithm("allreduce", largeVector, comm.Sum); name {
	case inRankOrder, "ring", "pairwise":
		return name, name
	case "segmented_ring":
		return "ring", name
	}
	return "", ""
}

// largeVector is a size in bytes at which every table treats a vector as large.
const largeVector = 64 << 20

// inRankOrder is the algorithm that folds all elements in rank order. It is the only result of
// algorithmOf whose fold order does not depend on an element's position in the vector.
const inRankOrder = "shared"

// A layout says where the tensors of a Bucket are in the fusion buffer. The buffer has a section
// for each rank r. The section has chunk r of every tensor, one after the other. Each chunk is
// padded to the width of the widest chunk of its tensor. So each element is always in the chunk of
// the same rank and is always folded in the same order, whatever the other tensors are. All
// sections have the same length. A chunk has at most one element of padding.
//
//	tensors a, b of 3 and 2 elements, two ranks:  a0 a1 b0 | a2 -- b1
//
// If elements are folded in rank order, the tensors are stored one after the other without chunks.
// docs/adr/0008 has the reasons.
type layout struct {
	items  []item
	chunks int // number of chunks of each tensor
}

// layout returns the layout of items in the fusion buffer of this process set.
func (s *setComm) layout(items []item) layout {
	if s.foldAlgorithm == inRankOrder {
		return layout{items, 1}
	}
	return layout{items, len(s.ranks)}
}

// elements returns the length of the buffer in elements.
func (l *layout) elements() int {
	n := 0
	for i := range l.items {
		n += l.chunks * l.chunkWidth(&l.items[i])
	}
	return n
}

// chunkWidth returns the length of an item's widest chunk.
func (l *layout) chunkWidth(it *item) int { return (it.hi - it.lo + l.chunks - 1) / l.chunks }

// A chunkRange is a range of an item's elements, from lo to hi. In the buffer, the range starts at
// element at.
type chunkRange struct{ lo, hi, at int }

// each calls f for every chunk of every item, in the order of the buffer.
func (l *layout) each(f func(it *item, p chunkRange)) {
	at := 0
	for r := range l.chunks {
		for i := range l.items {
			it := &l.items[i]
			lo, hi := tensor.Chunk(it.hi-it.lo, l.chunks, r)
			f(it, chunkRange{it.lo + lo, it.lo + hi, at})
			at += l.chunkWidth(it)
		}
	}
}

// allReduce reduces a Bucket:
//
//	tensors                                   how
//	of Adasum                                 adasum
//	with a codec                              coded
//	one, not compressed                       where it is: its chunks are the layout already
//	several that reducesAsList accepts        where they are, as a list
//	others                                    packed into the fusion buffer
func (x *executor) allReduce(ctx context.Context, s *setComm, items []item, contributors int) error {
	t := items[0].Spec
	switch {
	case t.OpID == Adasum.ID():
		return x.adasum(ctx, s, items)
	case t.Codec != negotiate.Plain:
		return x.coded(ctx, s, &items[0], contributors)
	}
	// A single tensor is cut into chunks exactly as layout would cut it. So its bits are the same
	// without the buffer.
	if len(items) == 1 && t.Wire == t.DType {
		buf := x.ownBuffer(&items[0])
		scale(t.DType, buf, t.Pre)
		err := x.fold(ctx, s, &items[0], buf, contributors)
		scale(t.DType, buf, t.Post)
		return err
	}
	if s.reducesAsList(t, items, contributors) {
		return x.allReduceList(ctx, s, items)
	}
	l := s.layout(items)
	buf := x.pack(&l)
	x.times.packed = x.co.timestamp()
	if err := x.fold(ctx, s, &items[0], buf, contributors); err != nil {
		return err
	}
	x.times.transferred = x.co.timestamp()
	l.unpack(buf)
	return nil
}

// maxPackedTensor is the size in bytes of the largest tensor that is packed in a Bucket whose other
// tensors are sent from their own memory. For such a small tensor, an entry of a vectored write
// takes longer than a copy.
const maxPackedTensor = 16 << 10

// reducesAsList reports whether the tensors of a Bucket can be reduced in their own memory. All
// ranks get the same answer, since it depends only on negotiated values.
func (s *setComm) reducesAsList(t *negotiate.Spec, items []item, contributors int) bool {
	if t.Wire != t.DType || contributors < len(s.ranks) {
		return false
	}
	if s.foldAlgorithm != inRankOrder && (s.foldAlgorithm != "ring" || !items[0].wireOp().Commutative()) {
		return false
	}
	return items[0].h != nil
}

// allReduceList reduces a Bucket as a list of vectors, in the tensors' own memory. Over messages,
// the tensors of at most maxPackedTensor bytes are first packed into one vector, which is one
// element of the list. The layout of this vector divides each tensor among the ranks as if the
// tensor were reduced alone.
func (x *executor) allReduceList(ctx context.Context, s *setComm, items []item) error {
	t := items[0].Spec
	// In shared memory even small tensors are copied directly from their own memory into the shared
	// slots.
	small := items[:0:0]
	if s.foldAlgorithm != inRankOrder {
		small = x.smallItems(items)
	}
	x.list = x.list[:0]
	l := s.layout(small)
	var buf []byte
	if len(small) > 0 {
		buf = x.pack(&l)
		x.list = append(x.list, buf)
	}
	for i := range items {
		it := &items[i]
		if len(small) > 0 && it.bytes() <= maxPackedTensor {
			continue
		}
		scale(t.DType, it.h.dst, it.Spec.Pre)
		x.list = append(x.list, it.h.dst)
	}
	x.times.packed = x.co.timestamp()
	op := items[0].wireOp()
	if t.OpID == comm.Mean.ID() {
		op = comm.Mean
	}
	// The list is reduced in place, so the results of all tensors but the packed ones are already
	// in their buffers.
	err := s.c.Bridge().AllReduceList(ctx, s.foldAlgorithm, t.DType, x.list, op)
	clear(x.list)
	if err != nil {
		return err
	}
	x.times.transferred = x.co.timestamp()
	l.unpack(buf)
	for i := range items {
		if it := &items[i]; len(small) == 0 || it.bytes() > maxPackedTensor {
			scale(t.DType, it.h.dst, it.Spec.Post)
		}
	}
	return nil
}

// smallItems lists the items of at most maxPackedTensor bytes.
func (x *executor) smallItems(items []item) []item {
	x.packedItems = x.packedItems[:0]
	for i := range items {
		if items[i].bytes() <= maxPackedTensor {
			x.packedItems = append(x.packedItems, items[i])
		}
	}
	return x.packedItems
}

// ownBuffer returns the memory of an item's tensor. If this rank is absent, it returns a buffer of
// the executor, filled with the operator's identity.
func (x *executor) ownBuffer(it *item) []byte {
	if it.h == nil {
		buf := x.scratchBuffer(0, it.bytes())
		identity(it.Spec.OpID, it.Spec.DType, buf)
		return buf
	}
	es := it.Spec.DType.Size()
	return it.h.dst[it.lo*es : it.hi*es]
}

// pack copies a Bucket into the fusion buffer. It scales the elements and converts them to the wire
// type. If this rank is absent, pack fills the buffer with the identity.
func (x *executor) pack(l *layout) []byte {
	t := l.items[0].Spec
	es, ws := t.DType.Size(), t.Wire.Size()
	buf := x.scratchBuffer(0, l.elements()*ws)
	// If the first item has no handle, this rank is absent. Then there is no other item, because
	// tensors with absent ranks are not fused.
	if l.items[0].h == nil {
		identity(t.OpID, t.Wire, buf)
		return buf
	}
	l.each(func(it *item, p chunkRange) {
		size, width := p.hi-p.lo, l.chunkWidth(it)
		to := buf[p.at*ws : (p.at+size)*ws]
		clear(buf[(p.at+size)*ws : (p.at+width)*ws])
		if t.Wire != t.DType {
			compress.Narrow(t.Wire, to, t.DType, it.h.src[p.lo*es:p.hi*es], it.Spec.Pre)
			return
		}
		copy(to, it.h.src[p.lo*es:p.hi*es])
		scale(t.DType, to, it.Spec.Pre)
	})
	return buf
}

// unpack copies the results from the fusion buffer to the tensors. It converts them to the tensors'
// type and scales them.
func (l *layout) unpack(buf []byte) {
	if len(l.items) == 0 {
		return
	}
	t := l.items[0].Spec
	es, ws := t.DType.Size(), t.Wire.Size()
	l.each(func(it *item, p chunkRange) {
		if it.h == nil {
			return
		}
		from, dst := buf[p.at*ws:(p.at+p.hi-p.lo)*ws], it.h.dst[p.lo*es:p.hi*es]
		if t.Wire != t.DType {
			compress.Widen(t.DType, dst, t.Wire, from)
			scale(t.DType, dst, it.Spec.Post)
			return
		}
		copy(dst, from)
		scale(t.DType, dst, it.Spec.Post)
	})
}

// fold reduces a contiguous buffer on all ranks of s, in place. For a mean, if all ranks
// contribute, the algorithm divides each element once. If fewer ranks contribute, fold makes the
// division.
func (x *executor) fold(ctx context.Context, s *setComm, it *item, buf []byte, contributors int) error {
	t, kind, op := it.Spec, elementOf(it.Spec.Wire), it.wireOp()
	mean := t.OpID == comm.Mean.ID()
	switch {
	case s.foldAlgorithm == "" || !op.Commutative() && s.foldAlgorithm == "ring":
		return x.foldByReduceScatter(ctx, s, it, buf, contributors)
	case mean && contributors == len(s.ranks): // every element is divided once, by its owner
		return kind.allReduce(ctx, s.c, s.vectorAlgorithm, buf, comm.Mean)
	}
	err := kind.allReduce(ctx, s.c, s.vectorAlgorithm, buf, op)
	divide(t, buf, contributors)
	return err
}

// foldByReduceScatter is like fold, with two calls: a reduce-scatter and an allgather. For a mean,
// the owner of each chunk makes the division. The reduce-scatter always uses the algorithm for
// large vectors. The table's choice for this size could fold in another order, so that the bits of
// a tensor would depend on fusion. The allgather changes no bits, so the table chooses its
// algorithm.
func (x *executor) foldByReduceScatter(ctx context.Context, s *setComm, it *item, buf []byte, contributors int) error {
	t, kind := it.Spec, elementOf(it.Spec.Wire)
	ws, me := t.Wire.Size(), s.c.Rank()
	counts := x.perRank(len(s.ranks))
	at := 0
	for r := range counts {
		lo, hi := tensor.Chunk(len(buf)/ws, len(counts), r)
		counts[r] = hi - lo
		if r == me {
			at = lo
		}
	}
	// This rank's chunk is reduced in place, at the position where the allgather expects it.
	own := buf[at*ws : (at+counts[me])*ws]
	op := it.wireOp()
	if err := kind.reduceScatterV(ctx, s.c, s.c.Bridge().Algorithm("reduce_scatterv", largeVector, op), own, buf, counts, op); err != nil {
		return err
	}
	divide(t, own, contributors)
	return kind.allGatherV(ctx, s.c, buf, own, counts)
}

// wireOp returns the operator to fold with. A mean is folded as a sum and divided later by the
// number of contributing ranks.
func (it *item) wireOp() comm.Op {
	op, known := builtin(it.Spec.OpID)
	switch {
	case !known: // an operator of the program: no rank is absent
		return it.h.op
	case it.Spec.OpID == comm.Mean.ID():
		return comm.Sum
	}
	return op
}

// divide divides the sums by contributors if the tensor's operator is the mean.
func divide(t *negotiate.Spec, sums []byte, contributors int) {
	if t.OpID != comm.Mean.ID() {
		return
	}
	if k, err := comm.Mean.Kernel(t.Wire); err == nil {
		k.Finish(sums, contributors)
	}
}

// reduceScatter leaves this rank's rows in dst. A ReduceScatter is neither fused nor cut, so the
// table may choose the algorithm by its size.
func (x *executor) reduceScatter(ctx context.Context, s *setComm, it item, contributors int) error {
	t := it.Spec
	n, row := len(s.ranks), rowSize(t)/t.DType.Size()
	counts := x.perRank(n)
	for r := range n {
		lo, hi := tensor.Chunk(t.Shape[0], n, r)
		counts[r] = (hi - lo) * row
	}
	var src, dst []byte
	switch {
	case it.h == nil:
		src = x.scratchBuffer(0, t.Bytes())
		identity(t.OpID, t.DType, src)
		dst = x.scratchBuffer(1, counts[s.c.Rank()]*t.DType.Size())
	case t.Pre != 1:
		src, dst = x.scratchBuffer(0, t.Bytes()), it.h.dst
		copy(src, it.h.src)
		scale(t.DType, src, t.Pre)
	default:
		src, dst = it.h.src, it.h.dst
	}
	if err := elementOf(t.DType).reduceScatterV(ctx, s.c, "", dst, src, counts, it.wireOp()); err != nil {
		return err
	}
	divide(t, dst, contributors)
	scale(t.DType, dst, t.Post)
	return nil
}
