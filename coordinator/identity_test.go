package coordinator

import (
	"bytes"
	"fmt"
	"math"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/tensor"
)

// TestTheIdentityChangesNoShare folds the contribution of an absent rank with elements of every
// type. It does so as the left and as the right operand, with every operator that accepts the type.
func TestTheIdentityChangesNoShare(t *testing.T) {
	pairs := 0
	for _, op := range []comm.Op{
		comm.Sum, comm.Mean, comm.Prod, comm.Min, comm.Max, comm.LogicalAnd, comm.LogicalOr, comm.LogicalXor,
		comm.BitAnd, comm.BitOr, comm.BitXor, comm.MinLoc, comm.MaxLoc,
	} {
		if got, known := builtin(op.ID()); !known || got != op {
			t.Errorf("%s is not found by its id", op.Name())
		}
		for _, d := range tensor.DTypes() {
			k, err := op.Kernel(d)
			if err != nil {
				continue
			}
			pairs++
			for _, x := range examples(op, d) {
				none, got := make([]byte, len(x)), make([]byte, len(x))
				identity(op.ID(), d, none)
				for side, fold := range []func(){func() { k.Fold(got, none, x) }, func() { k.Fold(got, x, none) }} {
					if fold(); !bytes.Equal(got, x) {
						t.Errorf("%s of %v, side %d: identity % x makes % x of % x", op.Name(), d, side, none, got, x)
					}
				}
			}
		}
	}
	if pairs < 100 {
		t.Errorf("only %d pairs of an operator and a type", pairs)
	}
}

// examples returns vectors of three elements each.
func examples(op comm.Op, d tensor.DType) (list [][]byte) {
	add := func(e []byte) { list = append(list, bytes.Repeat(e, 3)) }
	logical := op == comm.LogicalAnd || op == comm.LogicalOr || op == comm.LogicalXor
	switch {
	case d.IsLoc():
		for _, v := range []float64{0, 1, 100} {
			e := make([]byte, d.Size())
			copy(e, anyNumber(d.Base(), v))
			copy(e[d.Size()-8:], of(int64(7)))
			add(e)
		}
	case logical: // every value except 0 becomes 1
		add(anyNumber(d, 0))
		add(anyNumber(d, 1))
	case scales(d):
		values := []float64{0, 1, -1, 0.5, -100}
		// The mixed terms of a complex product would change such values.
		if d != tensor.Complex64 && d != tensor.Complex128 {
			values = append(values, math.Copysign(0, -1), math.Inf(1), math.Inf(-1))
		}
		for _, v := range values {
			add(number(d, v))
		}
	default:
		add(anyNumber(d, 0))
		add(anyNumber(d, 1))
		if d != tensor.Bool {
			add(anyNumber(d, 100))
			add(ones(d.Size())) // -1, or the largest
			add(extreme(d, 1))
			add(extreme(d, -1))
		}
	}
	return list
}

// anyNumber returns one element with the value v, a small whole number.
func anyNumber(d tensor.DType, v float64) []byte {
	if scales(d) {
		return number(d, v)
	}
	return integer(d.Size(), int64(v))
}

func TestExtremesAreThoseOfTheType(t *testing.T) {
	for _, c := range []struct {
		d       tensor.DType
		sign    int
		element []byte
	}{
		{tensor.Int8, 1, of(int8(math.MaxInt8))}, {tensor.Int8, -1, of(int8(math.MinInt8))},
		{tensor.Int32, 1, of(int32(math.MaxInt32))}, {tensor.Int64, -1, of(int64(math.MinInt64))},
		{tensor.Uint16, 1, of(uint16(math.MaxUint16))}, {tensor.Uint16, -1, of(uint16(0))},
		{tensor.Float32, 1, of(float32(math.Inf(1)))}, {tensor.Float64, -1, of(math.Inf(-1))},
		{tensor.F16, 1, of(uint16(0x7c00))}, {tensor.BF16, -1, of(uint16(0xff80))},
	} {
		t.Run(fmt.Sprint(c.d, c.sign), func(t *testing.T) {
			if got := extreme(c.d, c.sign); !bytes.Equal(got, c.element) {
				t.Errorf("got % x, want % x", got, c.element)
			}
		})
	}
}
