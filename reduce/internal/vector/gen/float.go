package main

import (
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// No kernel here fuses: each operation rounds by itself, as in plain Go.

func addFloat(bits int) pair {
	if bits == 32 {
		return of((*build.Context).VADDPS)
	}
	return of((*build.Context).VADDPD)
}

func mulFloat(bits int) pair {
	if bits == 32 {
		return of((*build.Context).VMULPS)
	}
	return of((*build.Context).VMULPD)
}

// minFloat and maxFloat compare the operands in both orders, and join the bits of the two results.
// If both operands are zeros, the processor returns the second one, so the two results differ at
// most in the sign. The minimum joins them with OR, so that -0 wins. The maximum joins them with
// AND, so that +0 wins. NaNs are replaced by the canonical NaN at the end.

func minFloat(bits int) builder {
	ins := map[int]instruction{32: (*build.Context).VMINPS, 64: (*build.Context).VMINPD}[bits]
	return extremeFloat(bits, of(ins), (*vec).or)
}

func maxFloat(bits int) builder {
	ins := map[int]instruction{32: (*build.Context).VMAXPS, 64: (*build.Context).VMAXPD}[bits]
	return extremeFloat(bits, of(ins), (*vec).and)
}

func extremeFloat(bits int, ask, join pair) builder {
	return func(v *vec) step {
		nan := v.constant(4, 0x7fc00000)
		if bits == 64 {
			nan = v.constant(8, 0x7ff8000000000000)
		}
		return func(args ...value) value {
			a, b := args[0], args[1]
			d := join(v, ask(v, a, b), ask(v, b, a))
			return v.whereUnordered(bits, a, b, nan, d)
		}
	}
}

// unordered is the predicate of a comparison that is true if an operand is a NaN, and that raises
// no flag for quiet NaNs.
const unordered = 3

// whereUnordered returns x where a or b is NaN, and y elsewhere. It may change y.
func (v *vec) whereUnordered(bits int, a, b, x, y value) value {
	if v.masks {
		k := v.K()
		if bits == 32 {
			v.VCMPPS(operand.U8(unordered), a, b, k)
			v.VMOVAPS(x, k, y)
		} else {
			v.VCMPPD(operand.U8(unordered), a, b, k)
			v.VMOVAPD(x, k, y)
		}
		return y
	}
	mask, d := v.reg(), v.reg()
	if bits == 32 {
		v.VCMPPS(operand.U8(unordered), a, b, mask)
	} else {
		v.VCMPPD(operand.U8(unordered), a, b, mask)
	}
	v.VBLENDVPS(mask, x, y, d) // by 32 bits serves 64 as well
	return d
}

// The functions below multiply complex numbers, [a b] by [c d]. Two multiplications give [ac bc]
// and [bd ad]. One instruction then subtracts the even elements and adds the odd ones.

func mulComplex128(v *vec) step {
	minus := v.realParts()
	return func(args ...value) value { return v.mulComplex(args[0], args[1], minus) }
}

// mulComplex64 computes in float64, where the products are exact, and rounds once.
func mulComplex64(v *vec) step {
	minus := v.realParts()
	return func(args ...value) value {
		return v.inHalves(args, v.VCVTPS2PD, func(args ...value) value {
			return v.mulComplex(args[0], args[1], minus)
		}, func(wide value, half reg.Register) {
			if v.masks {
				v.VCVTPD2PS(wide, half)
			} else {
				v.VCVTPD2PSY(wide, half)
			}
		})
	}
}

// realParts returns a mask of the even elements, on levels with masks.
func (v *vec) realParts() reg.Register {
	if !v.masks {
		return nil
	}
	bits, k := v.GP32(), v.K()
	v.MOVL(operand.U32(0x55), bits)
	v.KMOVB(bits, k)
	return k
}

func (v *vec) mulComplex(x, y value, minus reg.Register) value {
	cc, dd, swapped, d := v.reg(), v.reg(), v.reg(), v.reg()
	swap, odd := operand.U8(0x55), operand.U8(0xff)
	v.VMOVDDUP(y, cc)
	v.VPERMILPD(odd, y, dd)
	v.VPERMILPD(swap, x, swapped)
	v.VMULPD(cc, x, cc)       // ac bc
	v.VMULPD(dd, swapped, dd) // bd ad
	if v.masks {
		v.VADDPD(dd, cc, d)
		v.VSUBPD(dd, cc, minus, d)
	} else {
		v.VADDSUBPD(dd, cc, d)
	}
	return d
}

// inHalves widens each half of the operands to whole vectors, applies s, narrows the results,
// and joins them.
func (v *vec) inHalves(args []value, widen func(ops ...operand.Op), s step, narrow func(wide value, half reg.Register)) value {
	low, high, d := v.half(), v.half(), v.reg()
	var wideLow, wideHigh []value
	for _, x := range args {
		w, h, upper := v.reg(), v.reg(), v.half()
		widen(v.lower(x), w)
		if v.masks {
			v.VEXTRACTI64X4(operand.U8(1), x, upper)
		} else {
			v.VEXTRACTI128(operand.U8(1), x, upper)
		}
		widen(upper, h)
		wideLow, wideHigh = append(wideLow, w), append(wideHigh, h)
	}
	narrow(s(wideLow...), low)
	narrow(s(wideHigh...), high)
	if v.masks {
		v.VINSERTI64X4(operand.U8(1), high, low.AsZ(), d)
	} else {
		v.VINSERTI128(operand.U8(1), high, low.AsY(), d)
	}
	return d
}

// lower returns the lower half of x as a register of half the width.
func (v *vec) lower(x value) reg.Register {
	if v.masks {
		return x.AsY()
	}
	return x.AsX()
}

// The functions below generate the division of a mean. The number of ranks is exact in every type.

func divideFloat32(v *vec) step {
	divisor := v.divisor32()
	return func(args ...value) value { return v.quotient32(args[0], divisor) }
}

func divideFloat64(v *vec) step {
	x, divisor := v.XMM(), v.reg()
	v.Load(v.Param("divisor"), x)
	v.VBROADCASTSD(x, divisor)
	return func(args ...value) value {
		d := v.reg()
		v.VDIVPD(divisor, args[0], d)
		return d
	}
}

func (v *vec) divisor32() value {
	x, divisor := v.XMM(), v.reg()
	v.Load(v.Param("divisor"), x)
	v.VCVTSD2SS(x, x, x)
	v.VBROADCASTSS(x, divisor)
	return divisor
}

func (v *vec) quotient32(x, divisor value) value {
	d := v.reg()
	v.VDIVPS(divisor, x, d)
	return d
}
