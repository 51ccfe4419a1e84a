package reduce

import "github.com/tutti-go/tutti/tensor"

// A halfOrder compares the encodings of one of the short floats, so that min and max need no
// arithmetic. Its loops treat elements as uint16.
type halfOrder struct {
	infinity uint16 // encodings that are greater, without the sign bit, are NaNs
	nan      uint16 // the canonical NaN
}

// float16Order returns the order of float16s.
func float16Order() halfOrder { return halfOrder{infinity: 0x7c00, nan: canonicalFloat16} }

// bfloat16Order returns the order of bfloat16s.
func bfloat16Order() halfOrder { return halfOrder{infinity: 0x7f80, nan: canonicalBFloat16} }

// isNaN reports whether bits encode a NaN.
func (h halfOrder) isNaN(bits uint16) bool { return bits&0x7fff > h.infinity }

// key returns an integer that has the same order as the encoded numbers. The key of -0 is below the
// key of +0.
func key(bits uint16) int32 {
	magnitude := int32(bits & 0x7fff)
	if bits&0x8000 != 0 {
		return ^magnitude
	}
	return magnitude
}

// min is the loop of Min.
func (h halfOrder) min(dst, earlier, later []uint16) {
	earlier, later = earlier[:len(dst)], later[:len(dst)]
	for i := range dst {
		x, y := earlier[i], later[i]
		if key(y) < key(x) {
			x, y = y, x
		}
		if h.isNaN(x) || h.isNaN(y) {
			x = h.nan
		}
		dst[i] = x
	}
}

// max is the loop of Max.
func (h halfOrder) max(dst, earlier, later []uint16) {
	earlier, later = earlier[:len(dst)], later[:len(dst)]
	for i := range dst {
		x, y := earlier[i], later[i]
		if key(x) < key(y) {
			x, y = y, x
		}
		if h.isNaN(x) || h.isNaN(y) {
			x = h.nan
		}
		dst[i] = x
	}
}

// minLoc is the loop of MinLoc.
func (h halfOrder) minLoc(dst, earlier, later []tensor.Loc[uint16]) {
	earlier, later = earlier[:len(dst)], later[:len(dst)]
	for i := range dst {
		x, y := earlier[i], later[i]
		if h.isNaN(x.Value) || h.isNaN(y.Value) {
			dst[i] = h.nanLoc(x, y)
			continue
		}
		if kx, ky := key(x.Value), key(y.Value); ky < kx || ky == kx && y.Index < x.Index {
			x = y
		}
		dst[i] = x
	}
}

// maxLoc is the loop of MaxLoc.
func (h halfOrder) maxLoc(dst, earlier, later []tensor.Loc[uint16]) {
	earlier, later = earlier[:len(dst)], later[:len(dst)]
	for i := range dst {
		x, y := earlier[i], later[i]
		if h.isNaN(x.Value) || h.isNaN(y.Value) {
			dst[i] = h.nanLoc(x, y)
			continue
		}
		if kx, ky := key(x.Value), key(y.Value); kx < ky || ky == kx && y.Index < x.Index {
			x = y
		}
		dst[i] = x
	}
}

// nanLoc returns the result for x and y if at least one of them is a NaN. The result is the NaN, or
// the NaN with the lower index if both are NaNs.
func (h halfOrder) nanLoc(x, y tensor.Loc[uint16]) tensor.Loc[uint16] {
	if !h.isNaN(x.Value) || h.isNaN(y.Value) && y.Index < x.Index {
		x = y
	}
	return tensor.Loc[uint16]{Value: h.nan, Index: x.Index}
}
