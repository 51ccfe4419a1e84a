package reduce

import (
	"math"
	"strings"

	"gonum.org/v1/gonum/blas/gonum"

	"github.com/tutti-go/tutti/tensor"
)

// A table holds the fold of every operator for every type that it takes, and
// nothing for the rest. It is filled once and never changes.
type table struct {
	folds     [codeUser][math.MaxUint8 + 1]fold // by code and DType
	divisions [math.MaxUint8 + 1]finish         // of Mean
}

var kernels = newTable()

func newTable() *table {
	t := new(table)

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
	return t
}

func addInteger[T integer](t *table) {
	d := tensor.TypeOf[T]()
	t.folds[codeSum][d] = over(sum[T])
	t.folds[codeProd][d] = over(prod[T])
	t.folds[codeMin][d] = over(minInteger[T])
	t.folds[codeMax][d] = over(maxInteger[T])
	t.folds[codeLogicalAnd][d] = over(logicalAnd[T])
	t.folds[codeLogicalOr][d] = over(logicalOr[T])
	t.folds[codeLogicalXor][d] = over(logicalXor[T])
	t.folds[codeBitAnd][d] = bitAnd
	t.folds[codeBitOr][d] = bitOr
	t.folds[codeBitXor][d] = bitXor
}

func addFloat[T float](t *table, plus axpy[T]) {
	d := tensor.TypeOf[T]()
	t.folds[codeSum][d] = over(plus.sum)
	t.folds[codeMean][d] = over(plus.sum)
	t.divisions[d] = overEach(divide[T])
	t.folds[codeProd][d] = over(prod[T])
	t.folds[codeMin][d] = over(minFloat[T])
	t.folds[codeMax][d] = over(maxFloat[T])
}

func addFloat16(t *table) {
	const d = tensor.F16
	t.folds[codeSum][d] = over(sumFloat16)
	t.folds[codeMean][d] = over(sumFloat16)
	t.divisions[d] = overEach(divideFloat16)
	t.folds[codeProd][d] = over(prodFloat16)
	t.folds[codeMin][d] = over(float16Order().min)
	t.folds[codeMax][d] = over(float16Order().max)
}

func addBFloat16(t *table) {
	const d = tensor.BF16
	t.folds[codeSum][d] = over(sumBFloat16)
	t.folds[codeMean][d] = over(sumBFloat16)
	t.divisions[d] = overEach(divideBFloat16)
	t.folds[codeProd][d] = over(prodBFloat16)
	t.folds[codeMin][d] = over(bfloat16Order().min)
	t.folds[codeMax][d] = over(bfloat16Order().max)
}

// addComplex comes after addFloat: what works on each part by itself is the
// float's kernel, over twice as many elements.
func addComplex(t *table) {
	for _, c := range []struct{ whole, part tensor.DType }{
		{tensor.Complex64, tensor.Float32},
		{tensor.Complex128, tensor.Float64},
	} {
		t.folds[codeSum][c.whole] = t.folds[codeSum][c.part]
		t.folds[codeMean][c.whole] = t.folds[codeMean][c.part]
		t.divisions[c.whole] = t.divisions[c.part]
	}
	t.folds[codeProd][tensor.Complex64] = over(prodComplex64)
	t.folds[codeProd][tensor.Complex128] = over(prodComplex128)
}

// addBool comes after addInteger: a bool is a byte, and normalized as one.
func addBool(t *table) {
	for logical, bit := range map[code]code{codeLogicalAnd: codeBitAnd, codeLogicalOr: codeBitOr, codeLogicalXor: codeBitXor} {
		t.folds[logical][tensor.Bool] = t.folds[logical][tensor.Uint8]
		t.folds[bit][tensor.Bool] = t.folds[logical][tensor.Uint8]
	}
}

// addLoc takes the loops ready made: a Loc of a type parameter is no Element.
func addLoc[L tensor.Element](t *table, value tensor.DType, minimum, maximum func(dst, earlier, later []L)) {
	t.folds[codeMinLoc][tensor.LocOf(value)] = over(minimum)
	t.folds[codeMaxLoc][tensor.LocOf(value)] = over(maximum)
}

// takenBy lists the types that an operator takes, for people.
func (t *table) takenBy(c code) string {
	var names []string
	for _, d := range tensor.DTypes() {
		if t.folds[c][d] != nil {
			names = append(names, d.String())
		}
	}
	return strings.Join(names, ", ")
}
