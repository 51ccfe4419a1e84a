package reduce

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"

	"github.com/tutti-go/tutti/tensor"
)

// The reference is plain Go, which handles one pair of elements at a time. It follows the package
// comment and does not share code with the loops.

// A referenceCase is one kernel with operands and the results that plain Go gives for them.
type referenceCase struct {
	op                   Op
	dtype                tensor.DType
	earlier, later, want []byte
	wrong                func(got []byte) string // describes the first wrong element, or returns ""
}

// against returns the case with all pairs of the given values.
func against[T tensor.Element](op Op, values []T, ref func(a, b T) T, same func(got, want T) bool) referenceCase {
	return between(op, values, values, ref, same)
}

// between returns the case with all pairs of a value in xs and a value in ys.
func between[T tensor.Element](op Op, xs, ys []T, ref func(a, b T) T, same func(got, want T) bool) referenceCase {
	n := len(xs) * len(ys)
	a, b, want := make([]T, 0, n), make([]T, 0, n), make([]T, 0, n)
	for _, x := range xs {
		for _, y := range ys {
			a, b, want = append(a, x), append(b, y), append(want, ref(x, y))
		}
	}
	return referenceCase{
		op: op, dtype: tensor.TypeOf[T](),
		earlier: tensor.Bytes(a), later: tensor.Bytes(b), want: tensor.Bytes(want),
		wrong: func(got []byte) string {
			if bytes.Equal(got, tensor.Bytes(want)) {
				return ""
			}
			for i, g := range tensor.Elements[T](got) {
				if !same(g, want[i]) {
					return fmt.Sprintf("(%v, %v) gives %v, want %v", a[i], b[i], g, want[i])
				}
			}
			return ""
		},
	}
}

// referenceCases lists every operator with every type that it supports.
var referenceCases = sync.OnceValue(func() []referenceCase {
	var all []referenceCase
	all = append(all, integerCases(everyByte[int8]())...)
	all = append(all, integerCases(everyByte[uint8]())...)
	all = append(all, integerCases(integers[int16](math.MinInt16, math.MaxInt16))...)
	all = append(all, integerCases(integers[int32](math.MinInt32, math.MaxInt32))...)
	all = append(all, integerCases(integers[int64](math.MinInt64, math.MaxInt64))...)
	all = append(all, integerCases(integers[uint16](0, math.MaxUint16))...)
	all = append(all, integerCases(integers[uint32](0, math.MaxUint32))...)
	all = append(all, integerCases(integers[uint64](0, math.MaxUint64))...)
	all = append(all, floatCases(floats32(), math.Float32frombits(0x7fc00000))...)
	all = append(all, floatCases(floats64(), math.Float64frombits(0x7ff8000000000000))...)
	all = append(all, shortCases(tensor.Float16FromBits, tensor.Float16From, 0x7c00, 0x7e00)...)
	all = append(all, shortCases(tensor.BFloat16FromBits, tensor.BFloat16From, 0x7f80, 0x7fc0)...)
	all = append(all, complexCases()...)
	all = append(all, boolCases()...)
	return append(all, locCases()...)
})

// Integers.

func everyByte[T int8 | uint8]() []T {
	var all []T
	for n := range 256 {
		all = append(all, T(n))
	}
	return all
}

func integers[T integer](lowest, highest T) []T {
	values := []T{0, 1, 2, 3, 7, 8, 0x55, lowest, lowest + 1, lowest / 2, highest, highest - 1, highest / 2, highest/2 + 1, 0}
	values[len(values)-1]-- // -1, or the highest again
	rng := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		values = append(values, T(rng.Uint64()))
	}
	return values
}

func integerCases[T integer](values []T) []referenceCase {
	truth := func(f func(a, b bool) bool) func(a, b T) T {
		return func(a, b T) T {
			if f(a != 0, b != 0) {
				return 1
			}
			return 0
		}
	}
	pick := func(want int) func(a, b T) T {
		return func(a, b T) T {
			if cmp.Compare(a, b) == want {
				return a
			}
			return b
		}
	}
	var all []referenceCase
	for _, c := range []struct {
		op  Op
		ref func(a, b T) T
	}{
		{Sum, func(a, b T) T { return a + b }},
		{Prod, func(a, b T) T { return a * b }},
		{Min, pick(-1)},
		{Max, pick(+1)},
		{LogicalAnd, truth(func(a, b bool) bool { return a && b })},
		{LogicalOr, truth(func(a, b bool) bool { return a || b })},
		{LogicalXor, truth(func(a, b bool) bool { return a != b })},
		{BitAnd, func(a, b T) T { return a & b }},
		{BitOr, func(a, b T) T { return a | b }},
		{BitXor, func(a, b T) T { return a ^ b }},
	} {
		all = append(all, against(c.op, values, c.ref, equal[T]))
	}
	return all
}

func equal[T comparable](got, want T) bool { return got == want }

func boolCases() []referenceCase {
	and := func(a, b bool) bool { return a && b }
	or := func(a, b bool) bool { return a || b }
	xor := func(a, b bool) bool { return a != b }
	var all []referenceCase
	for _, c := range []struct {
		op  Op
		ref func(a, b bool) bool
	}{
		{LogicalAnd, and}, {LogicalOr, or}, {LogicalXor, xor}, {BitAnd, and}, {BitOr, or}, {BitXor, xor},
	} {
		all = append(all, against(c.op, []bool{false, true}, c.ref, equal[bool]))
	}
	return all
}

// Floats.

func floats32() []float32 {
	var values []float32
	for _, u := range []uint32{
		0, 1, 2, 0x007fffff, 0x00800000, 0x00800001, 0x33800000, 0x3eaaaaab, 0x3f7fffff, 0x3f800000, 0x3f800001,
		0x40000000, 0x4b7fffff, 0x4b800000, 0x5f3759df, 0x7f000000, 0x7f7fffff, 0x7f800000, // the last is infinite
		0x7f800001, 0x7fbfffff, 0x7fc00000, 0x7fc00001, 0x7fffffff, // NaNs, the first two signalling
	} {
		values = append(values, math.Float32frombits(u), math.Float32frombits(u|1<<31))
	}
	rng := rand.New(rand.NewPCG(3, 4))
	for range 60 {
		values = append(values, math.Float32frombits(rng.Uint32()), rng.Float32())
	}
	return values
}

func floats64() []float64 {
	var values []float64
	for _, u := range []uint64{
		0, 1, 2, 0x000fffffffffffff, 0x0010000000000000, 0x3ca0000000000000, 0x3fd5555555555555, 0x3fefffffffffffff,
		0x3ff0000000000000, 0x3ff0000000000001, 0x4000000000000000, 0x433fffffffffffff, 0x5fe6eb50c7b537a9,
		0x7fe0000000000000, 0x7fefffffffffffff, 0x7ff0000000000000, // the last is infinite
		0x7ff0000000000001, 0x7ff7ffffffffffff, 0x7ff8000000000000, 0x7ff8000000000001, 0x7fffffffffffffff, // NaNs
	} {
		values = append(values, math.Float64frombits(u), math.Float64frombits(u|1<<63))
	}
	rng := rand.New(rand.NewPCG(5, 6))
	for range 60 {
		values = append(values, math.Float64frombits(rng.Uint64()), rng.Float64())
	}
	return values
}

// sameBits compares bytes.
func sameBits[T tensor.Element](got, want T) bool {
	return bytes.Equal(tensor.Bytes([]T{got}), tensor.Bytes([]T{want}))
}

// sameNumber reports whether two numbers have equal bits, so 0 and -0 differ. All NaNs are equal.
func sameNumber[T float](got, want T) bool {
	return got != got && want != want || sameBits(got, want)
}

func floatCases[T float](values []T, nan T) []referenceCase {
	add := func(a, b T) T { return a + b }
	widen := func(v T) float64 { return float64(v) }
	return []referenceCase{
		against(Sum, values, add, sameNumber),
		against(Mean, values, add, sameNumber),
		against(Prod, values, func(a, b T) T { return a * b }, sameNumber),
		against(Min, values, extreme(-1, widen, nan), sameBits),
		against(Max, values, extreme(+1, widen, nan), sameBits),
	}
}

// extreme returns min (sign -1) or max (+1) of values that widen exactly to float64.
func extreme[T any](sign int, widen func(T) float64, nan T) func(a, b T) T {
	return func(a, b T) T {
		x, y := widen(a), widen(b)
		switch {
		case math.IsNaN(x) || math.IsNaN(y):
			return nan
		case compareFloats(x, y) == sign:
			return a
		}
		return b
	}
}

// compareFloats orders numbers, with -0 below +0.
func compareFloats(x, y float64) int {
	if x == 0 && y == 0 {
		return cmp.Compare(math.Copysign(1, x), math.Copysign(1, y))
	}
	return cmp.Compare(x, y)
}

type shortFloat interface {
	tensor.Float16 | tensor.BFloat16
	Float32() float32
}

// shortCases pairs every value of a short float with each value of a set of special values. For the
// first six special values, it also pairs them in the opposite order.
func shortCases[T shortFloat](fromBits func(uint16) T, from func(float32) T, infinity, nan uint16) []referenceCase {
	var every, specials []T
	for u := range 1 << 16 {
		every = append(every, fromBits(uint16(u)))
	}
	one := infinity / 2 // close enough to 1: an exponent in the middle of the range
	for _, u := range []uint16{0, nan, infinity, infinity + 1, 0x7fff, infinity - 1, 1, 0x7f, 0x80, 0x3ff, 0x400, one, one + 1} {
		specials = append(specials, fromBits(u), fromBits(u|0x8000))
	}
	rng := rand.New(rand.NewPCG(7, uint64(nan)))
	for range 4 {
		specials = append(specials, fromBits(uint16(rng.Uint32())))
	}
	widen := func(v T) float64 { return float64(v.Float32()) }
	add := func(a, b T) T { return from(a.Float32() + b.Float32()) }
	var all []referenceCase
	for _, c := range []struct {
		op  Op
		ref func(a, b T) T
	}{
		{Sum, add},
		{Mean, add},
		{Prod, func(a, b T) T { return from(a.Float32() * b.Float32()) }},
		{Min, extreme(-1, widen, fromBits(nan))},
		{Max, extreme(+1, widen, fromBits(nan))},
	} {
		all = append(all,
			between(c.op, every, specials, c.ref, equal[T]),
			between(c.op, specials[:6], every, c.ref, equal[T]))
	}
	return all
}

// Complex numbers.

func complexCases() []referenceCase {
	rng := rand.New(rand.NewPCG(8, 9))
	var small []complex64
	f32 := floats32()
	for range 200 {
		small = append(small, complex(f32[rng.IntN(len(f32))], f32[rng.IntN(len(f32))]))
	}
	var big []complex128
	f64 := floats64()
	for range 200 {
		big = append(big, complex(f64[rng.IntN(len(f64))], f64[rng.IntN(len(f64))]))
	}
	same64 := func(got, want complex64) bool {
		return sameNumber(real(got), real(want)) && sameNumber(imag(got), imag(want))
	}
	same128 := func(got, want complex128) bool {
		return sameNumber(real(got), real(want)) && sameNumber(imag(got), imag(want))
	}
	add64 := func(a, b complex64) complex64 { return a + b }
	add128 := func(a, b complex128) complex128 { return a + b }
	return []referenceCase{
		against(Sum, small, add64, same64),
		against(Mean, small, add64, same64),
		against(Prod, small, func(a, b complex64) complex64 { return a * b }, same64),
		against(Sum, big, add128, same128),
		against(Mean, big, add128, same128),
		against(Prod, big, func(a, b complex128) complex128 {
			return complex(
				unfused(real(a), real(b))-unfused(imag(a), imag(b)),
				unfused(real(a), imag(b))+unfused(imag(a), real(b)))
		}, same128),
	}
}

// unfused returns a*b. Because it is not inlined, the compiler cannot fuse the product with a
// sum.
//
//go:noinline
func unfused(a, b float64) float64 { return a * b }

// Values with an index.

func locCases() []referenceCase {
	const someInts = 40
	halves, brains := shortLocValues()
	var all []referenceCase
	for _, more := range [][]referenceCase{
		locsAgainst(everyByte[int8]()[108:148], loc[int8], parts[int8], integerOrder, itself),
		locsAgainst(everyByte[uint8]()[:someInts], loc[uint8], parts[uint8], integerOrder, itself),
		locsAgainst(integers[int16](math.MinInt16, math.MaxInt16)[:someInts], loc[int16], parts[int16], integerOrder, itself),
		locsAgainst(integers[int32](math.MinInt32, math.MaxInt32)[:someInts], loc[int32], parts[int32], integerOrder, itself),
		locsAgainst(integers[int64](math.MinInt64, math.MaxInt64)[:someInts], loc[int64], parts[int64], integerOrder, itself),
		locsAgainst(integers[uint16](0, math.MaxUint16)[:someInts], loc[uint16], parts[uint16], integerOrder, itself),
		locsAgainst(integers[uint32](0, math.MaxUint32)[:someInts], loc[uint32], parts[uint32], integerOrder, itself),
		locsAgainst(integers[uint64](0, math.MaxUint64)[:someInts], loc[uint64], parts[uint64], integerOrder, itself),
		locsAgainst(floats32()[:60], loc[float32], parts[float32], floatOrder(widen32), oneNaN(widen32, math.Float32frombits(0x7fc00000))),
		locsAgainst(floats64()[:60], loc[float64], parts[float64], floatOrder(widen64), oneNaN(widen64, math.Float64frombits(0x7ff8000000000000))),
		locsAgainst(halves, loc[tensor.Float16], parts[tensor.Float16], floatOrder(widenHalf), oneNaN(widenHalf, tensor.Float16FromBits(0x7e00))),
		locsAgainst(brains, loc[tensor.BFloat16], parts[tensor.BFloat16], floatOrder(widenBrain), oneNaN(widenBrain, tensor.BFloat16FromBits(0x7fc0))),
	} {
		all = append(all, more...)
	}
	return all
}

func shortLocValues() (halves []tensor.Float16, brains []tensor.BFloat16) {
	for _, u := range []uint16{0, 1, 0x80, 0x3ff, 0x400, 0x3c00, 0x3f80, 0x7bff, 0x7c00, 0x7c01, 0x7e00, 0x7f7f, 0x7f80, 0x7f81, 0x7fc0, 0x7fff} {
		halves = append(halves, tensor.Float16FromBits(u), tensor.Float16FromBits(u|0x8000))
		brains = append(brains, tensor.BFloat16FromBits(u), tensor.BFloat16FromBits(u|0x8000))
	}
	return halves, brains
}

func loc[T tensor.LocValue](v T, i int64) tensor.Loc[T]   { return tensor.Loc[T]{Value: v, Index: i} }
func parts[T tensor.LocValue](l tensor.Loc[T]) (T, int64) { return l.Value, l.Index }
func itself[T any](v T) T                                 { return v }
func widen32(v float32) float64                           { return float64(v) }
func widen64(v float64) float64                           { return v }
func widenHalf(v tensor.Float16) float64                  { return float64(v.Float32()) }
func widenBrain(v tensor.BFloat16) float64                { return float64(v.Float32()) }

// An order is a function that compares two values for min (sign -1) or max (sign +1). If the result
// is positive, the first value wins. If it is negative, the second value wins. If it is 0, the
// index decides.

func integerOrder[T integer](sign int, a, b T) int { return sign * cmp.Compare(a, b) }

func floatOrder[T any](widen func(T) float64) func(sign int, a, b T) int {
	return func(sign int, a, b T) int {
		x, y := widen(a), widen(b)
		switch {
		case math.IsNaN(x) && math.IsNaN(y):
			return 0
		case math.IsNaN(x):
			return 1
		case math.IsNaN(y):
			return -1
		}
		return sign * compareFloats(x, y)
	}
}

func oneNaN[T any](widen func(T) float64, nan T) func(T) T {
	return func(v T) T {
		if math.IsNaN(widen(v)) {
			return nan
		}
		return v
	}
}

// locsAgainst pairs all values with several indexes. The caller names L, which is Loc[T],
// because a Loc of a type parameter is not an Element.
func locsAgainst[T tensor.LocValue, L tensor.Element](
	values []T, join func(T, int64) L, split func(L) (T, int64), order func(sign int, a, b T) int, canonical func(T) T,
) []referenceCase {
	var locs []L
	for _, v := range values {
		for _, i := range []int64{math.MinInt64, 3, 4} {
			locs = append(locs, join(v, i))
		}
	}
	ref := func(sign int) func(a, b L) L {
		return func(a, b L) L {
			x, i := split(a)
			y, j := split(b)
			c := order(sign, x, y)
			if c > 0 || c == 0 && i <= j {
				return join(canonical(x), i)
			}
			return join(canonical(y), j)
		}
	}
	same := func(got, want L) bool {
		x, i := split(got)
		y, j := split(want)
		return i == j && sameBits(x, y)
	}
	return []referenceCase{
		against(MinLoc, locs, ref(-1), same),
		against(MaxLoc, locs, ref(+1), same),
	}
}
