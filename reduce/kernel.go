package reduce

import (
	"math"
	"unsafe"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/reduce/internal/vector"
	"github.com/tutti-go/tutti/tensor"
)

// A Kernel is an operator for one element type, made by Op.Kernel. It is an immutable value of one
// word. Several goroutines may fold with it at the same time, each into its own memory. The zero
// Kernel has no operator: its DType is invalid, and its Fold must not be called.
type Kernel struct{ loops *loops }

// The type loops holds the functions that a Kernel runs. They never change. The length of the
// operands determines the function that folds:
//
//	bytes              loop
//	below the minimum  plain, in Go
//	from the minimum   vector, if the processor has one for the pair
//	below, unaligned   plain, on aligned copies; vector loops accept any alignment
//
// The minimum is Shortest of the level's vector.Kernels: 4 bytes with AVX2, and 1 byte with
// AVX-512.
type loops struct {
	op    Op
	dtype tensor.DType
	size  int // bytes of an element
	// partMask has the bits of a length that are 0 for whole elements. It is -1 if size is no power
	// of two.
	partMask       int
	plain          fold        // for any length
	vector         vector.Fold // the same with vector instructions, from minVectorBytes on
	minVectorBytes int         // math.MaxInt where there is no vector loop
	finish         finish      // nil when there is nothing to finish
}

// A fold is a function that sets dst to op(earlier, later), element by element.
type fold func(dst, earlier, later []byte)

// A finish is a function that turns a complete fold into the result. The parameter ranks is the
// number of shares in the fold.
type finish func(buf []byte, ranks int)

// newLoops returns loops without a vector loop.
func newLoops(op Op, d tensor.DType, plain fold) *loops {
	size := d.Size()
	part := size - 1
	if size&part != 0 {
		part = -1 // a Loc of a 32-bit host, of 12 bytes
	}
	return &loops{op: op, dtype: d, size: size, partMask: part, plain: plain, minVectorBytes: math.MaxInt}
}

// DType returns the type of the elements.
func (k Kernel) DType() tensor.DType {
	if k.loops == nil {
		return tensor.Invalid
	}
	return k.loops.dtype
}

// Op returns the operator.
func (k Kernel) Op() Op {
	if k.loops == nil {
		return Op{}
	}
	return k.loops.op
}

// Fold sets dst to op(earlier, later), element by element. dst may be the same memory as either
// operand, or as both operands. Otherwise it must not overlap an operand.
//
// The three slices must have equal lengths, in whole elements. Otherwise Fold panics with a
// *fault.Error of kind Misuse.
func (k Kernel) Fold(dst, earlier, later []byte) {
	l := k.loops
	switch {
	case len(dst) != len(earlier) || len(dst) != len(later) || len(dst)&l.partMask != 0 && len(dst)%l.size != 0:
		panic(l.misuse(len(dst), len(earlier), len(later)))
	case len(dst) >= l.minVectorBytes:
		l.foldVector(dst, earlier, later)
	case len(dst) > 0:
		l.plain(dst, earlier, later)
	}
}

// misuse returns the error for a panic of Fold.
func (l *loops) misuse(dst, earlier, later int) error {
	return fault.New(fault.Misuse, "reduce.Kernel.Fold", -1, "%s of %v: got %d, %d and %d bytes, want dst, earlier and later of one length in whole elements",
		l.op.Name(), l.dtype, dst, earlier, later)
}

// Finish turns the complete fold of all ranks' shares into the result, in place. For Mean it
// divides by the number of ranks, which is at least 1. For every other operator it does nothing.
// Each element must be finished once.
func (k Kernel) Finish(buf []byte, ranks int) {
	if l := k.loops; l.finish != nil && len(buf) > 0 && ranks > 1 {
		l.finish(buf, ranks)
	}
}

// over returns a fold that runs a loop over elements.
func over[T tensor.Element](loop func(dst, earlier, later []T)) fold {
	return func(dst, earlier, later []byte) {
		if !tensor.Aligned[T](dst) || !tensor.Aligned[T](earlier) || !tensor.Aligned[T](later) {
			foldUnaligned(loop, dst, earlier, later)
			return
		}
		loop(elements[T](dst), elements[T](earlier), elements[T](later))
	}
}

// elements is like tensor.Elements, but makes no checks, because Fold has already made them. It is
// inlined, which halves the time to fold one element.
func elements[T tensor.Element](b []byte) []T {
	var e T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(e)))
}

// stageLen is the number of elements that foldUnaligned copies at a time.
const stageLen = 128

// foldUnaligned runs a loop on aligned copies of the operands, stageLen elements at a time.
func foldUnaligned[T tensor.Element](loop func(dst, earlier, later []T), dst, earlier, later []byte) {
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

// overEach returns a finish that runs a loop over elements.
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
