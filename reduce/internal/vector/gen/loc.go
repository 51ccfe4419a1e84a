package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/operand"
)

// An element of minloc and maxloc is two lanes of 64 bits:
//
//	even lane   the value in the lower bits, padding above
//	odd lane    the index
//
// Values become keys: signed 64-bit integers in the order of the numbers. The
// comparison in the even lane decides for both lanes. Keys in odd lanes mean nothing.
//
// AVX2's functions serve AVX-512 as well. AVX-512 compares into masks, which have to
// be moved from lane to lane one by one; that costs more than the wider vectors gain.

// A locValue is the type of a Loc's value.
type locValue struct {
	name     string
	bits     uint
	unsigned bool
	float    encoding // of a float: its infinity and NaN; else zero
}

var locValues = []locValue{
	{name: "Int8", bits: 8}, {name: "Int16", bits: 16}, {name: "Int32", bits: 32}, {name: "Int64", bits: 64},
	{name: "Uint8", bits: 8, unsigned: true}, {name: "Uint16", bits: 16, unsigned: true},
	{name: "Uint32", bits: 32, unsigned: true}, {name: "Uint64", bits: 64, unsigned: true},
	{name: "F16", bits: 16, float: binary16}, {name: "BF16", bits: 16, float: brain16},
	{name: "Float32", bits: 32, float: encoding{infinity: 0x7f800000, nan: 0x7fc00000}},
	{name: "Float64", bits: 64, float: encoding{infinity: 0x7ff0000000000000, nan: 0x7ff8000000000000}},
}

// locs returns the kernels of minloc and maxloc.
func locs() (all []kernel) {
	for _, op := range []struct {
		name, op string
		least    bool
	}{{"MinLoc", "minloc", true}, {"MaxLoc", "maxloc", false}} {
		for _, t := range locValues {
			types := []string{fmt.Sprintf("LocOf(tensor.%s)", t.name)}
			all = append(all, kernel{op.name + t.name, op.op, types, extremeLoc{t, op.least}.build})
		}
	}
	return all
}

// An extremeLoc generates minloc or maxloc of one type. The kernel selects the later element where
// its key is more extreme, or where the keys are equal and its index is lower. The key of a NaN is
// more extreme than the key of any number. So a NaN wins against a number, and of two NaNs the one
// with the lower index wins. NaNs are replaced by the canonical NaN at the end.
type extremeLoc struct {
	locValue
	least bool
}

func (e extremeLoc) build(v *vec) step {
	key := e.key(v)
	if e.float == (encoding{}) {
		return func(args ...value) value {
			x, y := args[0], args[1]
			kx, _ := key(x)
			ky, _ := key(y)
			return v.selectLoc(e.least, x, y, kx, ky)
		}
	}
	canonical := v.constant(8, e.float.nan)
	return func(args ...value) value {
		x, y := args[0], args[1]
		kx, nanX := key(x)
		ky, nanY := key(y)
		d := v.selectLoc(e.least, x, y, kx, ky)
		// The canonical NaN replaces the whole value lane, and nothing of the index lane.
		nan, lower := v.reg(), v.reg()
		v.VPOR(nanX, nanY, nan)
		v.VPBLENDD(operand.U8(0x33), canonical, d, lower)
		v.VBLENDVPD(nan, lower, d, d)
		return d
	}
}

// key returns a function that computes the keys of x, and a mask nan whose bits are 1 in the lanes
// of NaNs. For integers, nan is nil.
func (e extremeLoc) key(v *vec) func(x value) (key, nan value) {
	switch {
	case e.float != (encoding{}):
		return e.keyOfFloat(v)
	case e.unsigned && e.bits == 64:
		sign := v.constant(8, 1<<63)
		return func(x value) (key, nan value) { return v.xor(x, sign), nil }
	case e.unsigned:
		low := v.constant(8, 1<<e.bits-1)
		return func(x value) (key, nan value) { return v.and(x, low), nil }
	case e.bits == 64:
		return func(x value) (key, nan value) { return x, nil }
	}
	return func(x value) (key, nan value) { return e.raised(v, x), nil }
}

// raised shifts the value to the upper end of its lane. This shifts the padding out of the lane.
func (e extremeLoc) raised(v *vec, x value) value {
	if e.bits == 64 {
		return x
	}
	d := v.reg()
	v.VPSLLQ(operand.U8(64-e.bits), x, d)
	return d
}

// keyOfFloat inverts the magnitude of negative numbers, as extremeHalf does.
func (e extremeLoc) keyOfFloat(v *vec) func(x value) (key, nan value) {
	magnitude, infinity := v.constant(8, 1<<63-1), v.constant(8, e.float.infinity<<(64-e.bits))
	extreme := v.constant(8, 1<<63-1)
	if e.least {
		extreme = v.constant(8, 1<<63)
	}
	zero := v.constant(8, 0)
	return func(x value) (key, nan value) {
		s, negative := e.raised(v, x), v.reg()
		key, nan = v.reg(), v.reg()
		v.VPCMPGTQ(s, zero, negative)
		v.VPCMPGTQ(infinity, v.and(s, magnitude), nan)
		v.VBLENDVPD(nan, extreme, v.xor(s, v.and(negative, magnitude)), key)
		return key, nan
	}
}

// selectLoc returns y where its key is more extreme than x's, or where the keys are equal and
// its index is lower. Elsewhere it returns x.
func (v *vec) selectLoc(least bool, x, y, kx, ky value) value {
	if !least {
		kx, ky = ky, kx
	}
	d := v.reg()
	same, lower := v.reg(), v.reg()
	v.VPCMPEQQ(kx, ky, same)
	v.VPCMPGTQ(y, x, lower)
	v.VPSHUFD(operand.U8(0x4e), lower, lower) // from the other lane
	v.VPAND(same, lower, same)
	v.VPCMPGTQ(ky, kx, lower)
	v.VPOR(same, lower, lower)
	v.VPSHUFD(operand.U8(0x44), lower, lower) // from the even lane
	v.VBLENDVPD(lower, y, x, d)
	return d
}
