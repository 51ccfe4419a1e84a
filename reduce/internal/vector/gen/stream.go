package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/operand"
)

// generateStream returns the assembly file of package cpu by name.
func generateStream(l level) (map[string][]byte, error) {
	v := newVec(l)
	v.ConstraintExpr("amd64")
	v.stream(l.prefix)
	asm, err := assembly(v.Context, "stream")
	if err != nil {
		return nil, fmt.Errorf("stream: %w", err)
	}
	return map[string][]byte{l.prefix + "_amd64.s": asm}, nil
}

// stream generates func(dst, src *byte, n int), a copy with non-temporal stores. dst is aligned to
// the width of a vector. n is a positive multiple of the size of unroll vectors.
//
// The stores of the copy are ordered before all later stores of the caller, such as the store of a
// flag.
func (v *vec) stream(name string) {
	v.begin(name, "func(dst, src *byte, n int)")
	dst := v.Load(v.Param("dst"), v.GP64())
	src := v.Load(v.Param("src"), v.GP64())
	n := v.Load(v.Param("n"), v.GP64())
	off := v.GP64()
	v.XORQ(off, off)
	v.Label("more")
	var part []value
	for i := range unroll {
		x := v.reg()
		v.move(v.at(src, off, i), x)
		part = append(part, x)
	}
	for i, x := range part {
		v.VMOVNTDQ(x, v.at(dst, off, i))
	}
	v.ADDQ(operand.U32(unroll*v.width), off)
	v.CMPQ(off, n)
	v.JL(operand.LabelRef("more"))
	v.SFENCE()
	v.VZEROUPPER()
	v.RET()
}
