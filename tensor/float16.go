package tensor

import (
	"math"
	"strconv"
)

// A Float16 is an IEEE 754 binary16 number:
//
//	bit   15     14 … 10    9 … 0
//	      sign   exponent   fraction
//
// It is for storage and messages. Convert it to float32 for arithmetic. The operator == compares
// bits, so NaN may equal NaN, and -0 differs from +0. The zero value is +0.
type Float16 struct{ bits uint16 }

// A BFloat16 is the upper half of a float32. It has the range of a float32 and 8 bits of precision:
//
//	bit   15     14 … 7     6 … 0
//	      sign   exponent   fraction
//
// Its use and comparison are the same as for Float16.
type BFloat16 struct{ bits uint16 }

// The encodings to which every NaN of a float32 is narrowed: quiet, positive, without payload. They
// are equal on all processors.
const (
	float16NaN  = 0x7e00
	bfloat16NaN = 0x7fc0
)

// Parts of the formats, as bits of a float32.
const (
	signBit     = 1 << 31
	infinity    = 0xff << 23
	fractionGap = 23 - 10          // number of fraction bits that float32 has and binary16 does not
	biasGap     = (127 - 15) << 23 // difference of the exponents' biases
	tooLarge16  = (127 + 16) << 23 // 65536, beyond every finite binary16
	smallest16  = (127 - 14) << 23 // 2^-14, the smallest normal binary16
)

// Float16From returns the Float16 nearest to f; a tie is rounded to even. Values that are too large
// become an infinity. Values that are too small become a subnormal or a zero. Every NaN becomes the
// positive quiet NaN without payload.
func Float16From(f float32) Float16 {
	u := math.Float32bits(f)
	sign := uint16(u >> 16 & 0x8000)
	u &^= signBit
	switch {
	case u > infinity:
		return Float16{float16NaN}
	case u >= tooLarge16:
		return Float16{sign | 0x7c00}
	case u < smallest16:
		// The last bit of a float32 near 0.5 is worth 2^-24, and so is the last bit
		// of a subnormal. The addition therefore rounds to even at the right bit.
		const half = 126 << 23
		sum := math.Float32frombits(u) + 0.5
		return Float16{sign | uint16(math.Float32bits(sum)-half)}
	}
	// Add half a unit minus one, and one more if the last remaining bit is 1. A carry into the
	// exponent also gives the right result, up to infinity.
	odd := u >> fractionGap & 1
	u += 1<<(fractionGap-1) - 1 + odd - biasGap
	return Float16{sign | uint16(u>>fractionGap)}
}

// Float16FromBits returns the number that u encodes.
func Float16FromBits(u uint16) Float16 { return Float16{u} }

// Bits returns the encoding of f.
func (f Float16) Bits() uint16 { return f.bits }

// Float32 returns the same number; the conversion is exact. A NaN keeps its payload.
func (f Float16) Float32() float32 {
	sign := uint32(f.bits&0x8000) << 16
	u := uint32(f.bits&0x7fff) << fractionGap
	switch {
	case u >= 0x1f<<23: // infinity and NaN
		u |= infinity
	case u >= 1<<23:
		u += biasGap
	default:
		// For a subnormal, append the fraction to a leading one, and subtract the one.
		u = math.Float32bits(math.Float32frombits(u|smallest16) - math.Float32frombits(smallest16))
	}
	return math.Float32frombits(sign | u)
}

// String returns the shortest decimal that identifies the float32 of the same value.
func (f Float16) String() string { return decimal(f.Float32()) }

// BFloat16From returns the BFloat16 nearest to f; a tie is rounded to even. Values that are too
// large become an infinity. Every NaN becomes the positive quiet NaN without payload.
func BFloat16From(f float32) BFloat16 {
	u := math.Float32bits(f)
	if u&^signBit > infinity {
		return BFloat16{bfloat16NaN}
	}
	odd := u >> 16 & 1
	return BFloat16{uint16((u + 0x7fff + odd) >> 16)}
}

// BFloat16FromBits returns the number that u encodes.
func BFloat16FromBits(u uint16) BFloat16 { return BFloat16{u} }

// Bits returns the encoding of f.
func (f BFloat16) Bits() uint16 { return f.bits }

// Float32 returns the same number; the conversion is exact. A NaN keeps its payload.
func (f BFloat16) Float32() float32 { return math.Float32frombits(uint32(f.bits) << 16) }

// String returns the shortest decimal that identifies f as a float32.
func (f BFloat16) String() string { return decimal(f.Float32()) }

// decimal formats f with as few digits as identify it.
func decimal(f float32) string { return strconv.FormatFloat(float64(f), 'g', -1, 32) }
