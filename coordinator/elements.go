package coordinator

import (
	"context"
	"math"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator/negotiate"
	"github.com/tutti-go/tutti/tensor"
)

// An element calls comm's generic functions for a DType, which is known only when a tensor runs.
// The executor has the buffers as bytes. An element converts them to slices of its type without a
// copy.
type element interface {
	allReduce(ctx context.Context, c *comm.Comm, algorithm string, buf []byte, op comm.Op) error
	reduceScatterV(ctx context.Context, c *comm.Comm, algorithm string, dst, src []byte, counts []int, op comm.Op) error
	allGatherV(ctx context.Context, c *comm.Comm, dst, src []byte, counts []int) error
}

// The type typed implements element for a Go type.
type typed[T comm.Element] struct{}

func (typed[T]) allReduce(ctx context.Context, c *comm.Comm, algorithm string, buf []byte, op comm.Op) error {
	return comm.AllReduce(ctx, c, tensor.Elements[T](buf), op, comm.Algorithm(algorithm))
}

func (typed[T]) reduceScatterV(ctx context.Context, c *comm.Comm, algorithm string, dst, src []byte, counts []int, op comm.Op) error {
	return comm.ReduceScatter(ctx, c, tensor.Elements[T](dst), op, comm.From(tensor.Elements[T](src)), comm.Counts(counts), comm.Algorithm(algorithm))
}

func (typed[T]) allGatherV(ctx context.Context, c *comm.Comm, dst, src []byte, counts []int) error {
	return comm.AllGather(ctx, c, tensor.Elements[T](dst), comm.From(tensor.Elements[T](src)), comm.Counts(counts))
}

// elementOf returns the element for a type. It is never nil for a valid type.
func elementOf(d tensor.DType) element {
	if d.IsLoc() {
		return locOf(d.Base())
	}
	switch d {
	case tensor.Int8:
		return typed[int8]{}
	case tensor.Int16:
		return typed[int16]{}
	case tensor.Int32:
		return typed[int32]{}
	case tensor.Int64:
		return typed[int64]{}
	case tensor.Uint8:
		return typed[uint8]{}
	case tensor.Uint16:
		return typed[uint16]{}
	case tensor.Uint32:
		return typed[uint32]{}
	case tensor.Uint64:
		return typed[uint64]{}
	case tensor.F16:
		return typed[tensor.Float16]{}
	case tensor.BF16:
		return typed[tensor.BFloat16]{}
	case tensor.Float32:
		return typed[float32]{}
	case tensor.Float64:
		return typed[float64]{}
	case tensor.Complex64:
		return typed[complex64]{}
	case tensor.Complex128:
		return typed[complex128]{}
	}
	return typed[bool]{}
}

// locOf returns the element for a Loc with the given base type.
func locOf(base tensor.DType) element {
	switch base {
	case tensor.Int8:
		return typed[tensor.Loc[int8]]{}
	case tensor.Int16:
		return typed[tensor.Loc[int16]]{}
	case tensor.Int32:
		return typed[tensor.Loc[int32]]{}
	case tensor.Int64:
		return typed[tensor.Loc[int64]]{}
	case tensor.Uint8:
		return typed[tensor.Loc[uint8]]{}
	case tensor.Uint16:
		return typed[tensor.Loc[uint16]]{}
	case tensor.Uint32:
		return typed[tensor.Loc[uint32]]{}
	case tensor.Uint64:
		return typed[tensor.Loc[uint64]]{}
	case tensor.F16:
		return typed[tensor.Loc[tensor.Float16]]{}
	case tensor.BF16:
		return typed[tensor.Loc[tensor.BFloat16]]{}
	case tensor.Float32:
		return typed[tensor.Loc[float32]]{}
	}
	return typed[tensor.Loc[float64]]{}
}

// builtin returns the operator of package comm with the given id. The result known is false if
// there is no such operator. Only these operators have identities.
func builtin(id uint64) (op comm.Op, known bool) {
	for _, op := range [...]comm.Op{
		comm.Sum, comm.Mean, comm.Prod, comm.Min, comm.Max, comm.LogicalAnd, comm.LogicalOr, comm.LogicalXor,
		comm.BitAnd, comm.BitOr, comm.BitXor, comm.MinLoc, comm.MaxLoc,
	} {
		if op.ID() == id {
			return op, true
		}
	}
	return comm.Op{}, false
}

// reduces reports whether an operation folds elements and therefore has an operator.
func reduces(k negotiate.Operation) bool {
	return k == negotiate.AllReduce || k == negotiate.ReduceScatter
}

// scales reports whether elements of type d can be multiplied by a factor.
func scales(d tensor.DType) bool {
	switch d {
	case tensor.F16, tensor.BF16, tensor.Float32, tensor.Float64, tensor.Complex64, tensor.Complex128:
		return true
	}
	return false
}

// scale multiplies the elements of buf by a factor. Each product is rounded once to the element
// type. float32 and float64 are multiplied in their own arithmetic, and 16-bit floats in float32.
// The real and imaginary parts of complex numbers are multiplied separately.
func scale(d tensor.DType, buf []byte, factor float64) {
	if factor == 1 || len(buf) == 0 {
		return
	}
	switch d {
	case tensor.Float32:
		scaleFloats[float32](buf, factor)
	case tensor.Float64:
		scaleFloats[float64](buf, factor)
	case tensor.Complex64: // the real and imaginary parts are scaled separately
		scaleFloats[float32](buf, factor)
	case tensor.Complex128:
		scaleFloats[float64](buf, factor)
	case tensor.F16:
		for i, v := range tensor.Elements[tensor.Float16](buf) {
			tensor.Elements[tensor.Float16](buf)[i] = tensor.Float16From(v.Float32() * float32(factor))
		}
	case tensor.BF16:
		for i, v := range tensor.Elements[tensor.BFloat16](buf) {
			tensor.Elements[tensor.BFloat16](buf)[i] = tensor.BFloat16From(v.Float32() * float32(factor))
		}
	}
}

// scaleFloats multiplies in the element type, not in float64, so that each product is rounded once.
func scaleFloats[T float32 | float64](buf []byte, factor float64) {
	f := T(factor)
	v := tensor.Elements[T](buf)
	for i := range v {
		v[i] *= f
	}
}

// identity fills buf with the operator's identity. A fold of the identity with a share does not
// change a bit of the share. The identity of a floating-point sum is -0, because 0 would turn a
// share of -0 into 0. The operator must belong to package comm and accept the type.
func identity(op uint64, d tensor.DType, buf []byte) {
	if len(buf) == 0 {
		return
	}
	clear(buf)
	pattern := identityOf(op, d)
	for at := copy(buf, pattern); at > 0 && at < len(buf); at *= 2 {
		copy(buf[at:], buf[:at])
	}
}

// identityOf returns the identity of an operator as one element. It returns nil if all bits of the
// identity are 0:
//
//	operator                       identity
//	sum, mean                      -0 for floats, since 0 + -0 is 0; 0 for integers
//	product, logical and           1
//	bitwise and                    all bits one; for bool, 1
//	min, max                       the largest, the smallest value; infinities for floats
//	minloc, maxloc                 the same with the largest index, which loses every tie
//	logical or and xor, bitwise    0
//	or and xor
func identityOf(op uint64, d tensor.DType) []byte {
	switch op {
	case comm.Sum.ID(), comm.Mean.ID():
		return number(d, math.Copysign(0, -1))
	case comm.Prod.ID(), comm.LogicalAnd.ID():
		return number(d, 1)
	case comm.BitAnd.ID():
		if d == tensor.Bool {
			return []byte{1}
		}
		return ones(d.Size())
	case comm.Min.ID():
		return extreme(d, 1)
	case comm.Max.ID():
		return extreme(d, -1)
	case comm.MinLoc.ID():
		return locExtreme(d, 1)
	case comm.MaxLoc.ID():
		return locExtreme(d, -1)
	}
	return nil
}

// ones returns n bytes with all bits set.
func ones(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = 0xff
	}
	return b
}

// of returns a value as the bytes of one element, in host byte order.
func of[T comm.Element](v T) []byte { return tensor.Bytes([]T{v}) }

// number returns v as one element of type d. If v is -0 and d is complex, the imaginary part is -0
// too.
func number(d tensor.DType, v float64) []byte {
	im := 0.0
	if v == 0 {
		im = v
	}
	switch d {
	case tensor.F16:
		return of(tensor.Float16From(float32(v)))
	case tensor.BF16:
		return of(tensor.BFloat16From(float32(v)))
	case tensor.Float32:
		return of(float32(v))
	case tensor.Float64:
		return of(v)
	case tensor.Complex64:
		return of(complex(float32(v), float32(im)))
	case tensor.Complex128:
		return of(complex(v, im))
	}
	b := make([]byte, d.Size()) // integers and bool
	if v == 1 {
		copy(b, integer(d.Size(), 1))
	}
	return b
}

// integer returns v as an integer of the given size in bytes, in host byte order.
func integer(size int, v int64) []byte {
	switch size {
	case 1:
		return of(int8(v))
	case 2:
		return of(int16(v))
	case 4:
		return of(int32(v))
	}
	return of(v)
}

// extreme returns the largest value of type d or, if sign is -1, the smallest.
func extreme(d tensor.DType, sign int) []byte {
	switch d {
	case tensor.F16, tensor.BF16, tensor.Float32, tensor.Float64:
		return number(d, math.Inf(sign))
	case tensor.Uint8, tensor.Uint16, tensor.Uint32, tensor.Uint64:
		if sign > 0 {
			return ones(d.Size())
		}
		return make([]byte, d.Size())
	}
	top := int64(math.MaxInt64) >> (64 - 8*d.Size())
	if sign < 0 {
		top = -top - 1
	}
	return integer(d.Size(), top)
}

// locExtreme returns a Loc with the extreme value and the largest index. Of two equal values, the
// value with the lower index wins, so the largest index loses every tie.
func locExtreme(d tensor.DType, sign int) []byte {
	b := make([]byte, d.Size())
	copy(b, extreme(d.Base(), sign))
	copy(b[d.Size()-8:], of(int64(math.MaxInt64)))
	return b
}
