package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The short floats, two bytes each, are widened to float32, folded there, and
// rounded once. Min and max need no arithmetic and work on the bits.

// An encoding describes a short float.
type encoding struct{ infinity, nan uint64 } // bits; the NaN is the canonical one

var (
	binary16 = encoding{0x7c00, 0x7e00}
	brain16  = encoding{0x7f80, 0x7fc0}
)

// A cleaner replaces every NaN among short floats by the canonical one.
type cleaner func(x value) value

// cleaner returns a cleaner for f. On levels with many registers, the cleaner keeps the constants
// in registers. On other levels, each use loads them.
func (v *vec) cleaner(f encoding) cleaner {
	constants := func() (magnitude, infinity, nan value) {
		return v.constant(2, 0x7fff), v.constant(2, f.infinity), v.constant(2, f.nan)
	}
	if v.masks {
		magnitude, infinity, nan := constants()
		constants = func() (value, value, value) { return magnitude, infinity, nan }
	}
	return func(x value) value {
		magnitude, infinity, nan := constants()
		return v.where16(v.and(x, magnitude), infinity, nan, x)
	}
}

// where16 returns x where a > b, and y elsewhere, as signed 16-bit integers. It may change y.
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

// float16 returns the builder of a kernel that applies p to float16s, which it widens to float32s.
// It uses the conversions of F16C and AVX-512. These handle subnormals in all modes of the
// processor, and a NaN stays a NaN.
//
// look generates the code by which the fast path finds NaNs.
func float16(p pair, look func(v *vec, wide []value)) builder {
	return func(v *vec) step {
		return v.float16(func(v *vec, args ...value) value { return p(v, args[0], args[1]) }, look)
	}
}

// float16 returns a step on float16s that applies s to float32s. It also calls s with v.narrow(),
// for the fast path.
func (v *vec) float16(s func(v *vec, args ...value) value, look func(v *vec, wide []value)) step {
	clean := v.cleaner(binary16)
	nearestEven := operand.U8(0)
	v.quick = func(dst, off reg.Register, sources []reg.Register) {
		n := v.narrow()
		var wide []value
		for i := range 2 * unroll * v.width / n.width {
			wide = append(wide, s(n, n.widenHalves(sources, off, i)...))
		}
		look(n, wide)
		for i, x := range wide {
			v.VCVTPS2PH(nearestEven, x, n.halfAt(dst, off, i))
		}
	}
	return func(args ...value) value {
		own := func(args ...value) value { return s(v, args...) }
		return clean(v.inHalves(args, v.VCVTPH2PS, own, func(wide value, half reg.Register) {
			v.VCVTPS2PH(nearestEven, wide, half)
		}))
	}
}

// narrow returns a generator for vectors of 32 bytes that uses all instructions of the level.
// Processors that split operations on 64 bytes into two halves, such as Zen 4, convert 64 bytes
// more slowly than twice 32 bytes.
func (v *vec) narrow() *vec {
	n := *v
	n.width = 32
	return &n
}

// fit returns the part of x that has the width of v's vectors.
func (v *vec) fit(x value) value {
	if v.width == 32 {
		return x.AsY().(value)
	}
	return x
}

// widenHalves loads the i-th half-vector after off from each source, and widens each float16 to a
// float32.
func (v *vec) widenHalves(sources []reg.Register, off reg.Register, i int) (wide []value) {
	for _, src := range sources {
		x := v.reg()
		v.VCVTPH2PS(v.halfAt(src, off, i), x)
		wide = append(wide, x)
	}
	return wide
}

// halfAt returns the operand of the i-th half-vector after base+off.
func (v *vec) halfAt(base, off reg.Register, i int) operand.Mem {
	return operand.Mem{Base: base, Index: off, Scale: 1, Disp: i * v.width / 2}
}

// carefulIfNaN generates code that leaves the fast path if one of the float32s is a NaN. NaNs are
// rare, so a check for NaNs costs less than a correction of every result. The number of float32s is
// even.
func (v *vec) carefulIfNaN(wide []value) {
	if v.masks {
		any := v.K()
		v.VCMPPS(operand.U8(unordered), wide[0], wide[1], any)
		for i := 2; i < len(wide); i += 2 {
			k := v.K()
			v.VCMPPS(operand.U8(unordered), wide[i], wide[i+1], k)
			v.KORW(k, any, any)
		}
		v.KORTESTW(any, any)
		v.JNE(operand.LabelRef(notQuick))
		return
	}
	any, signs := v.reg(), v.GP32()
	v.VCMPPS(operand.U8(unordered), wide[0], wide[1], any)
	for i := 2; i < len(wide); i += 2 {
		d := v.reg()
		v.VCMPPS(operand.U8(unordered), wide[i], wide[i+1], d)
		v.VORPS(d, any, any)
	}
	v.VMOVMSKPS(any, signs)
	v.TESTL(signs, signs)
	v.JNE(operand.LabelRef(notQuick))
}

// carefulIfNaNClings is like carefulIfNaN, with half as many instructions. It multiplies pairs of
// the float32s and sums the products. The sum is a NaN if one of the float32s is a NaN. The sum is
// also a NaN if a product is infinity times zero, or if two products are opposite infinities. The
// code then leaves the fast path without need. Such operands are rare in sums, so
// carefulIfNaNClings is used for sums and not for products. Finite numbers give no NaN, because a
// product is not rounded before it is added. The sum begins at 1, so that tiny products do not make
// it subnormal, which would be slow.
func (v *vec) carefulIfNaNClings(wide []value) {
	sum := v.constant(4, 0x3f800000)
	for i := 0; i < len(wide); i += 2 {
		v.VFMADD231PS(wide[i], wide[i+1], sum)
	}
	v.carefulIfNaN([]value{sum, sum})
}

// bfloat16 returns the builder of a kernel that applies p to bfloat16s, which it widens to
// float32s. A bfloat16 is the upper half of a float32, so a shift widens the even elements, and a
// mask the odd elements. The processors' own instructions flush subnormals to zero, so they cannot
// be used.
//
// look generates the code by which the fast path finds NaNs.
func bfloat16(p pair, look func(v *vec, wide []value)) builder {
	return func(v *vec) step {
		return v.bfloat16(func(args ...value) value { return p(v, args[0], args[1]) }, look)
	}
}

func (v *vec) bfloat16(s step, look func(v *vec, wide []value)) step {
	upper := v.constant(4, 0xffff0000)
	round := v.rounder()
	v.quick = func(dst, off reg.Register, sources []reg.Register) {
		var wide []value
		for i := range unroll {
			even, odd := v.splitAt(sources, off, i, upper, s)
			wide = append(wide, even, odd)
		}
		look(v, wide)
		for i := range unroll {
			v.store(round(wide[2*i], wide[2*i+1]), dst, off, i)
		}
	}
	clean := v.cleaner(brain16)
	// A NaN stays a NaN when it is rounded, because its lower half is zero, as in its operand.
	return func(args ...value) value { return clean(round(v.split(args, upper, s))) }
}

// split applies s to the even elements and to the odd ones, each widened.
func (v *vec) split(args []value, upper value, s step) (even, odd value) {
	var evens, odds []value
	for _, x := range args {
		e := v.reg()
		v.VPSLLD(operand.U8(16), x, e)
		evens, odds = append(evens, e), append(odds, v.and(x, upper))
	}
	return s(evens...), s(odds...)
}

// splitAt is like split, for the i-th vector of each source. It loads the even elements from an
// address that is two bytes lower. A mask then widens them, and reads its operand from memory,
// which a shift cannot do. The first vector is shifted instead, because the two bytes before it may
// lie outside the operand. They may also have just been stored, and a load that overlaps a recent
// store is slow.
func (v *vec) splitAt(sources []reg.Register, off reg.Register, i int, upper value, s step) (even, odd value) {
	if v.masks || i == 0 {
		return v.split(v.loadAll(sources, off, i), upper, s)
	}
	var evens, odds []value
	for _, src := range sources {
		e, o, at := v.reg(), v.reg(), v.at(src, off, i)
		before := at
		before.Disp -= 2
		v.VPAND(before, upper, e)
		v.VPAND(at, upper, o)
		evens, odds = append(evens, e), append(odds, o)
	}
	return s(evens...), s(odds...)
}

// rounder rounds float32s to bfloat16s, even and odd elements at once. The result is the upper
// half, plus one where the lower half is more than half of the last bit, or exactly half and
// the upper half is odd. It changes even.
func (v *vec) rounder() func(even, odd value) value {
	bit, odds := v.constant(2, 1), v.oddLanes()
	return func(even, odd value) value {
		up, down := v.reg(), v.reg()
		v.VPSRLD(operand.U8(16), even, up)
		v.VPSLLD(operand.U8(16), odd, down)
		upper, lower := v.mix(up, odd, odds), v.mix(even, down, odds)
		more := v.andNot(bit, upper) // 1 if upper is even, so that exactly half does not round up
		v.VPSUBUSW(more, lower, more)
		v.VPSRLW(operand.U8(15), more, more)
		v.VPADDW(more, upper, upper)
		return upper
	}
}

// oddLanes returns a mask of every other 16 bits, on levels with masks.
func (v *vec) oddLanes() reg.Register {
	if !v.masks {
		return nil
	}
	bits, k := v.GP32(), v.K()
	v.MOVL(operand.U32(0xaaaaaaaa), bits)
	v.KMOVD(bits, k)
	return k
}

// mix takes every other 16 bits from odd, and changes even.
func (v *vec) mix(even, odd value, odds reg.Register) value {
	if v.masks {
		v.VMOVDQU16(odd, odds, even)
		return even
	}
	d := v.reg()
	v.VPBLENDW(operand.U8(0xaa), odd, even, d)
	return d
}

// minHalf and maxHalf compare keys: signed integers in the order of the numbers, with
// -0 below +0. The keys of NaNs lie beyond those of the infinities.

func minHalf(f encoding) builder { return extremeHalf(f, minSigned(16)) }
func maxHalf(f encoding) builder { return extremeHalf(f, maxSigned(16)) }

func extremeHalf(f encoding, choose pair) builder {
	return func(v *vec) step {
		magnitude, infinity, nan := v.constant(2, 0x7fff), v.constant(2, f.infinity), v.constant(2, f.nan)
		// key inverts the magnitude of negative numbers. It is its own inverse.
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
	return v.float16(func(v *vec, args ...value) value { return v.quotient32(args[0], v.fit(divisor)) }, (*vec).carefulIfNaNClings)
}

func divideBFloat16(v *vec) step {
	divisor := v.divisor32()
	return v.bfloat16(func(args ...value) value { return v.quotient32(args[0], divisor) }, (*vec).carefulIfNaNClings)
}
