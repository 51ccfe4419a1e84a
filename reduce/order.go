package reduce

import (
	"math"

	"github.com/tutti-go/tutti/tensor"
)

// The canonical NaN of each float type: quiet, positive, no payload. (math.NaN
// has a payload of 1.)
const (
	canonicalFloat64  = 0x7ff8000000000000 // converts to the canonical float32 NaN, 0x7fc00000
	canonicalFloat16  = 0x7e00
	canonicalBFloat16 = 0x7fc0
)

// minInteger and maxInteger are loops over integers, which have a total order.
func minInteger[T integer](dst, earlier, later []T) {
	earlier, later = earlier[:len(dst)], later[:len(dst)]
	for i := range dst {
		dst[i] = min(earlier[i], later[i])
	}
}

func maxInteger[T integer](dst, earlier, later []T) {
	earlier, later = earlier[:len(dst)], later[:len(dst)]
	for i := range dst {
		dst[i] = max(earlier[i], later[i])
	}
}

// minFloat and maxFloat are loops over floats. Go's min and max follow the same rules, except that
// they keep the payload of a NaN.
func minFloat[T float](dst, earlier, later []T) {
	earlier, later = earlier[:len(dst)], later[:len(dst)]
	for i := range dst {
		dst[i] = canonical(min(earlier[i], later[i]))
	}
}

func maxFloat[T float](dst, earlier, later []T) {
	earlier, later = earlier[:len(dst)], later[:len(dst)]
	for i := range dst {
		dst[i] = canonical(max(earlier[i], later[i]))
	}
}

// canonical returns v, or the canonical NaN for any NaN. Integers are returned unchanged.
func canonical[T number](v T) T {
	if v != v {
		return T(math.Float64frombits(canonicalFloat64))
	}
	return v
}

// minLoc and maxLoc are loops over values with an index. A NaN wins against every number, and the
// lower index wins a tie. So the result does not depend on the order of the folds.
func minLoc[T number](dst, earlier, later []tensor.Loc[T]) {
	earlier, later = earlier[:len(dst)], later[:len(dst)]
	for i := range dst {
		x, y := earlier[i], later[i]
		if x.Value != x.Value || y.Value != y.Value {
			dst[i] = nanLoc(x, y)
			continue
		}
		if below(y.Value, x.Value) || !below(x.Value, y.Value) && y.Index < x.Index {
			x = y
		}
		dst[i] = x
	}
}

func maxLoc[T number](dst, earlier, later []tensor.Loc[T]) {
	earlier, later = earlier[:len(dst)], later[:len(dst)]
	for i := range dst {
		x, y := earlier[i], later[i]
		if x.Value != x.Value || y.Value != y.Value {
			dst[i] = nanLoc(x, y)
			continue
		}
		if below(x.Value, y.Value) || !below(y.Value, x.Value) && y.Index < x.Index {
			x = y
		}
		dst[i] = x
	}
}

// below orders numbers as min and max do: -0 is below +0.
func below[T number](x, y T) bool {
	return x < y || x == y && x == 0 && math.Signbit(float64(x)) && !math.Signbit(float64(y))
}

// nanLoc returns the result for x and y if at least one of them is a NaN. The result is the NaN, or
// the NaN with the lower index if both are NaNs.
func nanLoc[T number](x, y tensor.Loc[T]) tensor.Loc[T] {
	if x.Value == x.Value || y.Value != y.Value && y.Index < x.Index {
		x = y
	}
	return tensor.Loc[T]{Value: canonical(x.Value), Index: x.Index}
}
