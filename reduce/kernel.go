package reduce

import (
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/tensor"
)

// A Kernel is an operator for one element type, made by Op.Kernel. It is an
// immutable value, and any number of goroutines may fold with it at once, each
// into memory of its own.
type Kernel struct {
	op     Op
	dtype  tensor.DType
	fold   fold
	finish finish // nil when there is nothing to finish
}

// A fold sets dst to op(earlier, later), element by element.
type fold func(dst, earlier, later []byte)

// A finish turns a complete fold of that many ranks' shares into the result.
type finish func(buf []byte, ranks int)

// DType is the type of the elements.
func (k Kernel) DType() tensor.DType { return k.dtype }

// Op is the operator.
func (k Kernel) Op() Op { return k.op }

// Fold sets dst to op(earlier, later), element by element. dst may be the very
// memory of earlier, of later, or of both; it may not overlap them otherwise.
//
// The three have equal lengths, in whole elements. That is the caller's promise,
// and checked as an index is: Fold panics with a *fault.Error of kind Misuse.
func (k Kernel) Fold(dst, earlier, later []byte) {
	if len(dst) != len(earlier) || len(dst) != len(later) || len(dst)%k.dtype.Size() != 0 {
		panic(fault.New(fault.Misuse, "reduce.Kernel.Fold", -1, "%d = %s(%d, %d) bytes of %v",
			len(dst), k.op.Name(), len(earlier), len(later), k.dtype))
	}
	if len(dst) > 0 {
		k.fold(dst, earlier, later)
	}
}

// Finish turns the complete fold of all ranks' shares, in whole elements, into
// the result, in place: for Mean it divides by ranks, at least 1; for every
// other operator it does nothing. Each element is finished once.
func (k Kernel) Finish(buf []byte, ranks int) {
	if k.finish != nil && len(buf) > 0 && ranks > 1 {
		k.finish(buf, ranks)
	}
}

// over makes a fold of a loop over elements.
func over[T tensor.Element](loop func(dst, earlier, later []T)) fold {
	return func(dst, earlier, later []byte) {
		if !tensor.Aligned[T](dst) || !tensor.Aligned[T](earlier) || !tensor.Aligned[T](later) {
			staged(loop, dst, earlier, later)
			return
		}
		loop(tensor.Elements[T](dst), tensor.Elements[T](earlier), tensor.Elements[T](later))
	}
}

// stageLen is how many elements are copied at a time when memory is not aligned.
const stageLen = 128

// staged runs loop over aligned copies, a stage at a time.
func staged[T tensor.Element](loop func(dst, earlier, later []T), dst, earlier, later []byte) {
	x, y := make([]T, stageLen), make([]T, stageLen)
	xb, yb := tensor.Bytes(x), tensor.Bytes(y)
	for len(dst) > 0 {
		n := copy(xb, earlier)
		copy(yb, later)
		elems := n / (len(xb) / stageLen)
		loop(x[:elems], x[:elems], y[:elems])
		copy(dst, xb[:n])
		dst, earlier, later = dst[n:], earlier[n:], later[n:]
	}
}

// overEach makes a finish of a loop over elements.
func overEach[T tensor.Element](loop func(buf []T, ranks int)) finish {
	return func(buf []byte, ranks int) {
		if tensor.Aligned[T](buf) {
			loop(tensor.Elements[T](buf), ranks)
			return
		}
		x := make([]T, stageLen)
		xb := tensor.Bytes(x)
		for len(buf) > 0 {
			n := copy(xb, buf)
			loop(x[:n/(len(xb)/stageLen)], ranks)
			copy(buf, xb[:n])
			buf = buf[n:]
		}
	}
}
