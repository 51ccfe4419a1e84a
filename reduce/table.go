package reduce

import (
	"math"
	"strings"

	"gonum.org/v1/gonum/blas/gonum"

	"github.com/tutti-go/tutti/reduce/internal/vector"
	"github.com/tutti-go/tutti/tensor"
)

// A table holds the loops of every operator for every type that the operator supports. For other
// types it holds nil. It is filled once and never changes.
type table struct {
	loops [codeUser][math.MaxUint8 + 1]*loops // by code and DType
}

var kernels = newTable(best())

// newTable returns the table for a processor of the given level. It has plain loops for all pairs,
// and the vector loops of the level if there are any.
func newTable(level vector.Level) *table {
	t := new(table)
	t.addPlain()
	t.addVectors(level.Kernels())
	return t
}

// set adds a plain loop to the table.
func (t *table) set(o Op, d tensor.DType, plain fold) {
	t.loops[o.definition().code][d] = newLoops(o, d, plain)
}

// setMean adds Mean's loops to the table. Mean uses the fold of Sum.
func (t *table) setMean(d tensor.DType, divide finish) {
	t.set(Mean, d, t.loops[codeSum][d].plain)
	t.loops[codeMean][d].finish = divide
}

// addPlain adds a plain loop for every pair of operator and type that package reduce supports.
// The order of the calls matters, because some types use the loops of other types.
func (t *table) addPlain() {
	addInteger[int8](t)
	addInteger[int16](t)
	addInteger[int32](t)
	addInteger[int64](t)
	addInteger[uint8](t)
	addInteger[uint16](t)
	addInteger[uint32](t)
	addInteger[uint64](t)

	addFloat(t, gonum.Implementation{}.Saxpy)
	addFloat(t, gonum.Implementation{}.Daxpy)
	addFloat16(t)
	addBFloat16(t)
	addComplex(t)
	addBool(t)

	addLoc(t, tensor.Int8, minLoc[int8], maxLoc[int8])
	addLoc(t, tensor.Int16, minLoc[int16], maxLoc[int16])
	addLoc(t, tensor.Int32, minLoc[int32], maxLoc[int32])
	addLoc(t, tensor.Int64, minLoc[int64], maxLoc[int64])
	addLoc(t, tensor.Uint8, minLoc[uint8], maxLoc[uint8])
	addLoc(t, tensor.Uint16, minLoc[uint16], maxLoc[uint16])
	addLoc(t, tensor.Uint32, minLoc[uint32], maxLoc[uint32])
	addLoc(t, tensor.Uint64, minLoc[uint64], maxLoc[uint64])
	addLoc(t, tensor.Float32, minLoc[float32], maxLoc[float32])
	addLoc(t, tensor.Float64, minLoc[float64], maxLoc[float64])
	addLoc(t, tensor.F16, float16Order().minLoc, float16Order().maxLoc)
	addLoc(t, tensor.BF16, bfloat16Order().minLoc, bfloat16Order().maxLoc)
}

// addInteger adds the loops of one integer type.
func addInteger[T integer](t *table) {
	d := tensor.TypeOf[T]()
	t.set(Sum, d, over(sum[T]))
	t.set(Prod, d, over(prod[T]))
	t.set(Min, d, over(minInteger[T]))
	t.set(Max, d, over(maxInteger[T]))
	t.set(LogicalAnd, d, over(logicalAnd[T]))
	t.set(LogicalOr, d, over(logicalOr[T]))
	t.set(LogicalXor, d, over(logicalXor[T]))
	t.set(BitAnd, d, bitAnd)
	t.set(BitOr, d, bitOr)
	t.set(BitXor, d, bitXor)
}

// addFloat adds the loops of float32 or float64. plus is gonum's axpy of that type, which sums
// faster than a Go loop.
func addFloat[T float](t *table, plus axpy[T]) {
	d := tensor.TypeOf[T]()
	t.set(Sum, d, over(plus.sum))
	t.setMean(d, overEach(divide[T]))
	t.set(Prod, d, over(prod[T]))
	t.set(Min, d, over(minFloat[T]))
	t.set(Max, d, over(maxFloat[T]))
}

// addFloat16 adds the loops of float16. Min and max compare encodings. All other operators widen
// the elements to float32.
func addFloat16(t *table) {
	const d = tensor.F16
	t.set(Sum, d, over(sumFloat16))
	t.setMean(d, overEach(divideFloat16))
	t.set(Prod, d, over(prodFloat16))
	t.set(Min, d, over(float16Order().min))
	t.set(Max, d, over(float16Order().max))
}

// addBFloat16 adds the loops of bfloat16, in the same way as addFloat16.
func addBFloat16(t *table) {
	const d = tensor.BF16
	t.set(Sum, d, over(sumBFloat16))
	t.setMean(d, overEach(divideBFloat16))
	t.set(Prod, d, over(prodBFloat16))
	t.set(Min, d, over(bfloat16Order().min))
	t.set(Max, d, over(bfloat16Order().max))
}

// addComplex adds the loops of the complex types. It must be called after addFloat, because it uses
// loops of the float types. A sum treats the two parts of a number separately, so it is the float's
// loop over twice as many elements.
func addComplex(t *table) {
	for _, c := range []struct{ whole, part tensor.DType }{
		{tensor.Complex64, tensor.Float32},
		{tensor.Complex128, tensor.Float64},
	} {
		t.set(Sum, c.whole, t.loops[codeSum][c.part].plain)
		t.setMean(c.whole, t.loops[codeMean][c.part].finish)
	}
	t.set(Prod, tensor.Complex64, over(prodComplex64))
	t.set(Prod, tensor.Complex128, over(prodComplex128))
}

// addBool adds the loops of bool. It must be called after addInteger, because it uses the logical
// loops of uint8, whose results are 0 and 1.
func addBool(t *table) {
	for _, c := range sameOnBools() {
		plain := t.loops[c.logical.definition().code][tensor.Uint8].plain
		t.set(c.logical, tensor.Bool, plain)
		t.set(c.bit, tensor.Bool, plain)
	}
}

// sameOnBools pairs the operators that are equal on bools.
func sameOnBools() []struct{ logical, bit Op } {
	return []struct{ logical, bit Op }{{LogicalAnd, BitAnd}, {LogicalOr, BitOr}, {LogicalXor, BitXor}}
}

// addLoc adds the loops of one Loc type. The caller passes the loops, because a Loc of a type
// parameter is not an Element.
func addLoc[L tensor.Element](t *table, value tensor.DType, minimum, maximum func(dst, earlier, later []L)) {
	t.set(MinLoc, tensor.LocOf(value), over(minimum))
	t.set(MaxLoc, tensor.LocOf(value), over(maximum))
}

// typesOf lists the types that an operator supports, for error texts.
func (t *table) typesOf(c code) string {
	var names []string
	for _, d := range tensor.DTypes() {
		if t.loops[c][d] != nil {
			names = append(names, d.String())
		}
	}
	return strings.Join(names, ", ")
}
