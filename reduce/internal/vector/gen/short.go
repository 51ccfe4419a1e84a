package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The short floats, two bytes each, are widened to float32, folded there, and
// rounded once. Min and max need no arithmetic and work on the bits.

// An encoding is what there is to know of a short float.
type encoding struct{ infinity, nan uint64 } // bits; the NaN is the canonical one

var (
	binary16 = encoding{0x7c00, 0x7e00}
	brain16  = encoding{0x7f80, 0x7fc0}
)

// A cleaner makes every NaN among short floats the canonical one.
type cleaner func(x value) value

func (v *vec) cleaner(f encoding) cleaner {
	magnitude, infinity, nan := v.constant(2, 0x7fff), v.constant(2, f.infinity), v.constant(2, f.nan)
	return func(x value) value {
		return v.where16(v.and(x, magnitude), infinity, nan, x)
	}
}

// where16 is x where a > b, and y elsewhere, as signed 16 bits. It may change y.
func (v *vec) where16(a, b, x, y value) value {
	if v.masks {
		k := v.K()
		v.VPCMPGTW(b, a, k)
		v.VMOVDQU16(x, k, y)
		return y
	}
	mask, d := v.reg(), v.reg()
	v.VPCMPGTW(b, a, mask)
	v.VPBLENDVB(mask, x, y, d)
	return d
}

// float16 uses the conversions of F16C and AVX-512, which know subnormals
// whatever the processor's modes are. A NaN passes through them as a NaN.
func float16(p pair) builder {
	return func(v *vec) step {
		return v.float16(func(args ...value) value { return p(v, args[0], args[1]) })
	}
}

func (v *vec) float16(s step) step {
	clean := v.cleaner(binary16)
	nearestEven := operand.U8(0)
	return func(args ...value) value {
		return clean(v.inHalves(args, v.VCVTPH2PS, s, func(wide value, half reg.Register) {
			v.VCVTPS2PH(nearestEven, wide, half)
		}))
	}
}

// bfloat16 takes even and odd elements apart by a shift and a mask, because a
// bfloat16 is the upper half of a float32. The processors' own instructions for
// it take subnormals for zeros, so they are no use.
func bfloat16(p pair) builder {
	return func(v *vec) step {
		return v.bfloat16(func(args ...value) value { return p(v, args[0], args[1]) })
	}
}

func (v *vec) bfloat16(s step) step {
	upper, bit, most := v.constant(4, 0xffff0000), v.constant(4, 1), v.constant(4, 0x7fff)
	clean := v.cleaner(brain16)
	// round adds half a unit less one, and one more where the last bit kept is
	// odd. A NaN survives: its lower half is zero, as its operand's was, so
	// nothing is carried.
	round := func(x value) value {
		odd := v.reg()
		v.VPSRLD(operand.U8(16), x, odd)
		odd = v.and(odd, bit)
		v.VPADDD(x, most, x)
		v.VPADDD(x, odd, x)
		return x
	}
	return func(args ...value) value {
		var evens, odds []value
		for _, x := range args {
			e := v.reg()
			v.VPSLLD(operand.U8(16), x, e)
			evens, odds = append(evens, e), append(odds, v.and(x, upper))
		}
		even, odd := round(s(evens...)), round(s(odds...))
		v.VPSRLD(operand.U8(16), even, even)
		return clean(v.zip(even, odd, upper))
	}
}

// zip takes the lower halves of each 32 bits from even, the upper ones from odd.
// even's upper halves are zero.
func (v *vec) zip(even, odd, upper value) value {
	if v.masks {
		const aAndBOrC = 0xea
		v.VPTERNLOGD(operand.U8(aAndBOrC), even, upper, odd)
		return odd
	}
	d := v.reg()
	v.VPBLENDW(operand.U8(0xaa), odd, even, d)
	return d
}

// minHalf and maxHalf compare keys: signed integers in the order of the numbers,
// with -0 below +0. A key's NaNs lie beyond the infinities' keys.

func minHalf(f encoding) builder { return extremeHalf(f, minSigned(16)) }
func maxHalf(f encoding) builder { return extremeHalf(f, maxSigned(16)) }

func extremeHalf(f encoding, choose pair) builder {
	return func(v *vec) step {
		magnitude, infinity, nan := v.constant(2, 0x7fff), v.constant(2, f.infinity), v.constant(2, f.nan)
		// key turns a negative number's magnitude around. It is its own inverse.
		key := func(x value) value {
			turn := v.reg()
			v.VPSRAW(operand.U8(15), x, turn)
			return v.xor(x, v.and(turn, magnitude))
		}
		return func(args ...value) value {
			a, b := args[0], args[1]
			d := key(choose(v, key(a), key(b)))
			larger := maxSigned(16)(v, v.and(a, magnitude), v.and(b, magnitude))
			return v.where16(larger, infinity, nan, d)
		}
	}
}

func divideFloat16(v *vec) step {
	divisor := v.divisor32()
	return v.float16(func(args ...value) value { return v.quotient32(args[0], divisor) })
}

func divideBFloat16(v *vec) step {
	divisor := v.divisor32()
	return v.bfloat16(func(args ...value) value { return v.quotient32(args[0], divisor) })
}
