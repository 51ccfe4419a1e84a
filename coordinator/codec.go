package coordinator

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator/negotiate"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/compress"
	"github.com/tutti-go/tutti/tensor"
)

// TopK compresses an AllReduce of float32 or float64 by comm.Sum or comm.Mean. Each rank sends only
// the elements of its buffer with the largest magnitude. The parameter keep is their number. Among
// elements with equal magnitude, it sends the first ones. A NaN counts as the largest magnitude.
//
// The slice residual keeps the error for the next step (error feedback). Each rank first adds
// residual to the buffer. After encoding, residual holds the elements that were not sent. It has
// the length of the buffer, and the caller fills it with zeros before the first step. It belongs to
// the coordinator while the submission is in flight. If residual is nil, the elements that are not
// sent are lost.
//
// A rank sends 8 bytes (float64: 12) to every other rank for each element that it keeps. The shares
// are added in rank order.
//
// Sources: Strom, "Scalable distributed DNN training using commodity GPU cloud computing",
// Interspeech 2015; Stich, Cordonnier and Jaggi, "Sparsified SGD with memory", NeurIPS 2018.
func TopK[T float32 | float64](keep int, residual []T) CallOption {
	return CallOption{code: optCodec, codec: negotiate.TopK, n: keep, residual: tensor.Bytes(residual), wire: tensor.TypeOf[T]()}
}

// OneBit compresses an AllReduce of float32 or float64 by comm.Sum or comm.Mean to one bit for each
// element, which says whether the element is below zero. Each element below zero is replaced by the
// mean of all elements below zero, and each other element by the mean of all other elements. The
// parameter residual has the same meaning as in TopK. Without a residual, a training converges
// badly.
//
// Source: Seide, Fu, Droppo, Li and Yu, "1-bit stochastic gradient descent and its application to
// data-parallel distributed training of speech DNNs", Interspeech 2014. The paper takes the two
// means over each column; OneBit takes them over the tensor.
func OneBit[T float32 | float64](residual []T) CallOption {
	return CallOption{code: optCodec, codec: negotiate.OneBit, residual: tensor.Bytes(residual), wire: tensor.TypeOf[T]()}
}

// validateFold returns the reason why Adasum or the codec of a request cannot be used. It returns
// "" if they can be used, or if the request uses neither of them.
func validateFold(q *negotiate.TensorRequest, h *Handle, count int) string {
	floats := q.DType == tensor.Float32 || q.DType == tensor.Float64
	plain := q.Operation == negotiate.AllReduce && floats && q.Wire == q.DType
	sums := h.op.ID() == comm.Sum.ID() || h.op.ID() == comm.Mean.ID()
	switch {
	case h.op.ID() == Adasum.ID():
		q.Whole = true
		if !plain || q.Codec != negotiate.Plain {
			return "operator: got Adasum, want it only in allreduces of float32 and float64 without compression"
		}
	case q.Codec == negotiate.Plain:
	case !plain || !sums:
		return "options: got TopK or OneBit, want them only in allreduces of float32 and float64 by comm.Sum or comm.Mean without other compression"
	case h.residualType != q.DType || len(h.residual) != 0 && len(h.residual) != len(h.src):
		return fmt.Sprintf("residual: got %d bytes of %v, want %d of %v, like the buffer", len(h.residual), h.residualType, len(h.src), q.DType)
	case q.Codec == negotiate.TopK && (q.Keep < 1 || q.Keep > math.MaxUint32 || count > math.MaxUint32):
		return fmt.Sprintf("TopK: got %d elements to keep of a buffer of %d, want 1 to %d of at most %[3]d", q.Keep, count, uint32(math.MaxUint32))
	}
	return ""
}

// coded reduces one tensor with a codec. Each rank sends one short message to all ranks.
func (x *executor) coded(ctx context.Context, s *setComm, it *item, contributors int) error {
	if it.Spec.DType == tensor.Float32 {
		return codedSum[float32](ctx, x, s, it, contributors)
	}
	return codedSum[float64](ctx, x, s, it, contributors)
}

// codedSum encodes this rank's share, gathers the messages of all ranks, and adds them in rank
// order. So all ranks get the same bits.
func codedSum[T float32 | float64](ctx context.Context, x *executor, s *setComm, it *item, contributors int) error {
	t := it.Spec
	c := codecOf[T](t)
	counts := make([]int, len(s.ranks))
	for i, r := range s.ranks {
		if !slices.Contains(x.absent, r) {
			counts[i] = c.bytes()
		}
	}
	var mine []byte
	if it.h != nil {
		mine = x.scratchBuffer(0, c.bytes())
		c.encode(mine, c.accumulate(x, it))
	}
	x.times.packed = x.co.timestamp()
	all := x.scratchBuffer(1, contributors*c.bytes())
	if err := comm.AllGather(ctx, s.c, all, comm.From(mine), comm.Counts(counts)); err != nil {
		return err
	}
	x.times.transferred = x.co.timestamp()
	if it.h == nil {
		return nil
	}
	dst := tensor.Elements[T](it.h.dst)
	clear(dst)
	for ; len(all) > 0; all = all[c.bytes():] {
		if !c.add(dst, all[:c.bytes()]) {
			return fault.New(fault.Mismatch, t.Call(), x.co.worldRank(x.co.rank), "TopK: got an element index beyond the tensor of %d elements; run the same version of the program on all ranks", c.n)
		}
	}
	divide(t, it.h.dst, contributors)
	scale(t.DType, it.h.dst, t.Post)
	return nil
}

// A codec encodes n elements into a short message. The residual keeps the difference between the
// elements and the message.
//
//	        message                                                  what stays in the residual
//	TopK    keep indices of 4 bytes, then keep elements              all other elements
//	OneBit  the mean of those not below zero, the mean of the rest,  each element minus its mean
//	        then one bit for each element, 1 if below
type codec[T float32 | float64] struct {
	kind    negotiate.Codec
	n, keep int
}

// codecOf returns the codec of a tensor. It limits keep to the number of elements.
func codecOf[T float32 | float64](t *negotiate.Spec) codec[T] {
	n := t.Elements()
	return codec[T]{t.Codec, n, min(t.Keep, n)}
}

// bytes returns the length of a message.
func (c codec[T]) bytes() int {
	size := tensor.TypeOf[T]().Size()
	switch {
	case c.n == 0:
		return 0
	case c.kind == negotiate.TopK:
		return compress.TopSize[T](c.keep)
	}
	return 2*size + (c.n+7)/8
}

// accumulate returns the elements to encode: the buffer, scaled, plus the residual of earlier
// submissions. It computes them in the residual or, if there is no residual, in memory of the
// executor.
func (c codec[T]) accumulate(x *executor, it *item) []T {
	src, pre := tensor.Elements[T](it.h.src), T(it.Spec.Pre)
	sum := tensor.Elements[T](it.h.residual)
	if len(sum) == 0 {
		sum = tensor.Elements[T](x.scratchBuffer(1, len(it.h.src)))
		clear(sum)
	}
	for i, v := range src {
		// The conversion forbids a fused multiply-add, whose rounding would differ between
		// processors.
		sum[i] += T(v * pre)
	}
	return sum
}

// encode writes a message, and leaves in sum the difference between the elements and the message.
func (c codec[T]) encode(msg []byte, sum []T) {
	if len(sum) == 0 {
		return
	}
	if c.kind == negotiate.TopK {
		compress.EncodeTop(msg, sum, c.keep)
		return
	}
	c.encodeBits(msg, sum)
}

// encodeBits writes a message of OneBit. It adds in float64, so that the means of long tensors are
// accurate enough.
func (c codec[T]) encodeBits(msg []byte, sum []T) {
	var below, other float64
	var belows int
	for _, v := range sum {
		if v < 0 {
			below += float64(v)
			belows++
		} else {
			other += float64(v)
		}
	}
	size := tensor.TypeOf[T]().Size()
	means := [2]T{T(other / float64(max(1, len(sum)-belows))), T(below / float64(max(1, belows)))}
	compress.PutFloat(msg, means[0])
	compress.PutFloat(msg[size:], means[1])
	bits := msg[2*size:]
	clear(bits)
	for i, v := range sum {
		which := 0
		if v < 0 {
			which = 1
			bits[i/8] |= 1 << (i % 8)
		}
		sum[i] = v - means[which]
	}
}

// add decodes a message and adds it to dst. It returns false if an index in the message is out of
// range.
func (c codec[T]) add(dst []T, msg []byte) bool {
	size := tensor.TypeOf[T]().Size()
	if c.kind == negotiate.TopK {
		return compress.AddTop(dst, msg, c.keep)
	}
	means, bits := [2]T{compress.Float[T](msg), compress.Float[T](msg[size:])}, msg[2*size:]
	for i := range dst {
		dst[i] += means[bits[i/8]>>(i%8)&1]
	}
	return true
}
