package main

import (
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
)

// The operands of an instruction are in Go's order: the destination, which Intel's
// manual writes first, is last.

// An instruction is one of avo's methods that has two source vectors and one result.
type instruction func(c *build.Context, ops ...operand.Op)

// of returns the pair that ins computes. The first operand in Go's order is the second source in
// Intel's manual.
func of(ins instruction) pair {
	return func(v *vec, a, b value) value {
		d := v.reg()
		ins(v.Context, b, a, d)
		return d
	}
}

func addInt(bits int) pair {
	return of(map[int]instruction{
		8:  (*build.Context).VPADDB,
		16: (*build.Context).VPADDW,
		32: (*build.Context).VPADDD,
		64: (*build.Context).VPADDQ,
	}[bits])
}

func minSigned(bits int) pair {
	return of(map[int]instruction{
		8:  (*build.Context).VPMINSB,
		16: (*build.Context).VPMINSW,
		32: (*build.Context).VPMINSD,
	}[bits])
}

func maxSigned(bits int) pair {
	return of(map[int]instruction{
		8:  (*build.Context).VPMAXSB,
		16: (*build.Context).VPMAXSW,
		32: (*build.Context).VPMAXSD,
	}[bits])
}

func minUnsigned(bits int) pair {
	return of(map[int]instruction{
		8:  (*build.Context).VPMINUB,
		16: (*build.Context).VPMINUW,
		32: (*build.Context).VPMINUD,
		64: (*build.Context).VPMINUQ, // AVX-512 only
	}[bits])
}

func maxUnsigned(bits int) pair {
	return of(map[int]instruction{
		8:  (*build.Context).VPMAXUB,
		16: (*build.Context).VPMAXUW,
		32: (*build.Context).VPMAXUD,
	}[bits])
}

// mulInt keeps the lower half of each product, as Go does.
func mulInt(bits int) pair {
	switch bits {
	case 16:
		return of((*build.Context).VPMULLW)
	case 32:
		return of((*build.Context).VPMULLD)
	}
	return (*vec).mulInt64
}

// mulInt64 is one instruction in AVX-512. AVX2 multiplies by digits of 32 bits: lo*lo + (lo*hi
// + hi*lo)<<32.
func (v *vec) mulInt64(a, b value) value {
	if v.masks {
		return of((*build.Context).VPMULLQ)(v, a, b)
	}
	aHigh, bHigh, d := v.reg(), v.reg(), v.reg()
	v.VPSRLQ(operand.U8(32), a, aHigh)
	v.VPSRLQ(operand.U8(32), b, bHigh)
	v.VPMULUDQ(b, aHigh, aHigh)
	v.VPMULUDQ(bHigh, a, bHigh)
	v.VPADDQ(aHigh, bHigh, bHigh)
	v.VPSLLQ(operand.U8(32), bHigh, bHigh)
	v.VPMULUDQ(b, a, d)
	v.VPADDQ(d, bHigh, d)
	return d
}

// mulInt8 multiplies even and odd bytes as words, because there is no instruction for bytes.
// The lower byte of a product depends on the lower bytes of its factors only.
func mulInt8(v *vec) step {
	low, high := v.constant(2, 0x00ff), v.constant(2, 0xff00)
	return func(args ...value) value {
		a, b := args[0], args[1]
		even, aOdd := v.reg(), v.reg()
		v.VPMULLW(b, a, even)
		even = v.and(even, low)
		v.VPSRLW(operand.U8(8), a, aOdd)
		odd := v.and(b, high) // odd bytes times 256, and so are the products
		v.VPMULLW(odd, aOdd, odd)
		return v.or(even, odd)
	}
}

// An extremeInt64 is min or max of 64-bit integers.
type extremeInt64 struct{ min, signed bool }

func (e extremeInt64) build(v *vec) step {
	if v.masks {
		return lanewise(of(map[extremeInt64]instruction{
			{true, true}:   (*build.Context).VPMINSQ,
			{true, false}:  (*build.Context).VPMINUQ,
			{false, true}:  (*build.Context).VPMAXSQ,
			{false, false}: (*build.Context).VPMAXUQ,
		}[e]))(v)
	}
	// AVX2 compares signed numbers only, so unsigned ones get inverted sign bits.
	turn := func(x value) value { return x }
	if !e.signed {
		sign := v.constant(8, 1<<63)
		turn = func(x value) value { return v.xor(x, sign) }
	}
	return func(args ...value) value {
		a, b := args[0], args[1]
		greater, d := v.reg(), v.reg()
		v.VPCMPGTQ(turn(b), turn(a), greater) // a > b
		if e.min {
			v.VPBLENDVB(greater, b, a, d)
		} else {
			v.VPBLENDVB(greater, a, b, d)
		}
		return d
	}
}

// The logical operators work on truths: 0, or 1 for every other number. The truth of x is the
// unsigned minimum of x and 1. The minimum is one instruction, except for 64 bits before AVX-512.

func logicalAnd(bits int) builder {
	return func(v *vec) step {
		truth := v.truth(bits)
		if v.lacksMinimum(bits) {
			return func(args ...value) value { return v.and(truth(args[0]), truth(args[1])) }
		}
		lower := minUnsigned(bits) // not 0 if neither operand is 0
		return func(args ...value) value { return truth(lower(v, args[0], args[1])) }
	}
}

func logicalOr(bits int) builder {
	return func(v *vec) step {
		truth := v.truth(bits)
		return func(args ...value) value { return truth(v.or(args[0], args[1])) }
	}
}

func logicalXor(bits int) builder {
	return func(v *vec) step {
		truth := v.truth(bits)
		return func(args ...value) value { return v.xor(truth(args[0]), truth(args[1])) }
	}
}

func (v *vec) lacksMinimum(bits int) bool { return bits == 64 && !v.masks }

// truth returns a function that turns everything but 0 into 1.
func (v *vec) truth(bits int) func(x value) value {
	one := v.constant(bits/8, 1)
	if !v.lacksMinimum(bits) {
		return func(x value) value { return minUnsigned(bits)(v, x, one) }
	}
	zero := v.constant(8, 0)
	return func(x value) value {
		d := v.reg()
		v.VPCMPEQQ(x, zero, d) // -1 for 0
		v.VPADDQ(d, one, d)
		return d
	}
}

func (v *vec) and(a, b value) value {
	d := v.reg()
	if v.masks {
		v.VPANDD(b, a, d)
	} else {
		v.VPAND(b, a, d)
	}
	return d
}

// andNot returns a without the bits of b.
func (v *vec) andNot(a, b value) value {
	d := v.reg()
	if v.masks {
		v.VPANDND(a, b, d)
	} else {
		v.VPANDN(a, b, d)
	}
	return d
}

func (v *vec) or(a, b value) value {
	d := v.reg()
	if v.masks {
		v.VPORD(b, a, d)
	} else {
		v.VPOR(b, a, d)
	}
	return d
}

func (v *vec) xor(a, b value) value {
	d := v.reg()
	if v.masks {
		v.VPXORD(b, a, d)
	} else {
		v.VPXOR(b, a, d)
	}
	return d
}
