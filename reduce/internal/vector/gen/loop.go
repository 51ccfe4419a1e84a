package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// A level is an instruction set that code is generated for.
type level struct {
	prefix   string // prefix of the functions' and files' names
	width    int    // bytes of a vector
	shortest int    // bytes that a call needs at least
	masks    bool   // has mask registers, and thirty-two vectors
}

var (
	avx2   = level{prefix: "avx2", width: 32, shortest: 4}
	avx512 = level{prefix: "avx512", width: 64, shortest: 1, masks: true}
)

// unroll is the number of vectors per iteration of the main loop. It is large enough to hide the
// two instructions of loop control, and small enough to keep functions short.
const unroll = 4

// vec generates the functions of one level.
type vec struct {
	*build.Context
	level
	known map[string]bool // names of the constants in the data section
	quick quick           // the fast path of the current function, or nil
}

func newVec(l level) *vec {
	return &vec{Context: build.NewContext(), level: l, known: map[string]bool{}}
}

// A value is a register with one vector of elements.
type value = reg.VecVirtual

// A step generates the computation of a kernel on one vector of each operand. It does not change
// its operands.
type step func(args ...value) value

// A builder generates a kernel's constants, and returns its step.
type builder func(v *vec) step

// A quick generates a fast path of the main loop, for unroll vectors, beginning at off. If the
// vectors need the ordinary step, the generated code jumps to notQuick before it stores anything.
type quick func(dst, off reg.Register, sources []reg.Register)

const notQuick = "careful"

// fold generates func(dst, earlier, later *byte, n int).
func (v *vec) fold(name string, build builder) {
	v.begin(name, "func(dst, earlier, later *byte, n int)")
	dst := v.Load(v.Param("dst"), v.GP64())
	earlier := v.Load(v.Param("earlier"), v.GP64())
	later := v.Load(v.Param("later"), v.GP64())
	n := v.Load(v.Param("n"), v.GP64())
	v.loop(build(v), dst, n, earlier, later)
}

// divide generates func(buf *byte, n int, divisor float64). The kernel reads the divisor along
// with its constants.
func (v *vec) divide(name string, build builder) {
	v.begin(name, "func(buf *byte, n int, divisor float64)")
	buf := v.Load(v.Param("buf"), v.GP64())
	n := v.Load(v.Param("n"), v.GP64())
	v.loop(build(v), buf, n, buf)
}

func (v *vec) begin(name, signature string) {
	v.quick = nil
	v.Function(name)
	v.Attributes(attr.NOSPLIT)
	v.SignatureExpr(signature)
}

// loop applies s to n bytes of each source, and stores the results to dst.
//
// The code computes the last vector first and stores it last. The last vector may overlap the
// vector before it. So the code needs no loop for the bytes after the last full vector, if n is at
// least one vector. The last vector is computed before the sources change, so dst may be one of the
// sources.
func (v *vec) loop(s step, dst, n reg.Register, sources ...reg.Register) {
	v.CMPQ(n, operand.U8(v.width))
	v.JL(operand.LabelRef("short"))
	end, off := v.GP64(), v.GP64()
	v.LEAQ(operand.Mem{Base: n, Disp: -v.width}, end)
	last := s(v.loadAll(sources, end, 0)...)
	v.XORQ(off, off)

	// The main loop: more than unroll vectors are left.
	many := v.GP64()
	v.LEAQ(operand.Mem{Base: n, Disp: -unroll * v.width}, many)
	v.CMPQ(off, many)
	v.JGE(operand.LabelRef("few"))
	v.Label("many")
	steps := func() {
		for i := range unroll {
			v.store(s(v.loadAll(sources, off, i)...), dst, off, i)
		}
	}
	if v.quick != nil {
		v.quick(dst, off, sources)
		v.Label("done")
	} else {
		steps()
	}
	v.ADDQ(operand.U32(unroll*v.width), off)
	v.CMPQ(off, many)
	v.JL(operand.LabelRef("many"))

	// The short loop: more than the last vector is left.
	v.Label("few")
	v.CMPQ(off, end)
	v.JGE(operand.LabelRef("end"))
	v.store(s(v.loadAll(sources, off, 0)...), dst, off, 0)
	v.ADDQ(operand.U32(v.width), off)
	v.JMP(operand.LabelRef("few"))

	v.Label("end")
	v.store(last, dst, end, 0)
	v.VZEROUPPER()
	v.RET()

	if v.quick != nil {
		v.Label(notQuick)
		steps()
		v.JMP(operand.LabelRef("done"))
	}

	v.Label("short")
	if v.masks {
		v.masked(s, dst, n, sources)
	} else {
		v.ends(s, dst, n, sources)
	}
}

// masked generates the code for less than one vector. It neither reads nor writes bytes beyond
// n.
func (v *vec) masked(s step, dst, n reg.Register, sources []reg.Register) {
	bits, mask := v.GP64(), v.K()
	v.MOVQ(operand.I32(-1), bits)
	v.BZHIQ(n, bits, bits)
	v.KMOVQ(bits, mask)
	var args []value
	for _, src := range sources {
		x := v.reg()
		v.VMOVDQU8_Z(operand.Mem{Base: src}, mask, x)
		args = append(args, x)
	}
	v.VMOVDQU8(s(args...), mask, operand.Mem{Base: dst})
	v.VZEROUPPER()
	v.RET()
}

// ends generates the code for less than one vector on levels without masks. It loads the first and
// the last 16, 8 or 4 bytes: the largest of these sizes that is at most n, so that both loads
// together cover all n bytes. Both results are computed before either is stored, because dst may be
// one of the sources.
func (v *vec) ends(s step, dst, n reg.Register, sources []reg.Register) {
	var first, last []value
	for range sources {
		first, last = append(first, v.YMM()), append(last, v.YMM())
	}
	load := func(bytes int, move func(from, to operand.Op)) {
		for i, src := range sources {
			move(operand.Mem{Base: src}, first[i].AsX())
			move(operand.Mem{Base: src, Index: n, Scale: 1, Disp: -bytes}, last[i].AsX())
		}
	}
	v.byLength(n, "load", load)
	x, y := s(first...), s(last...)
	v.byLength(n, "store", func(bytes int, move func(from, to operand.Op)) {
		move(x.AsX(), operand.Mem{Base: dst})
		move(y.AsX(), operand.Mem{Base: dst, Index: n, Scale: 1, Disp: -bytes})
	})
	v.VZEROUPPER()
	v.RET()
}

// byLength generates three branches. The code runs the branch of the largest of 16, 8 and 4 bytes
// that is at most n. A load of less than 16 bytes clears the rest of its register.
func (v *vec) byLength(n reg.Register, name string, write func(bytes int, move func(from, to operand.Op))) {
	for _, c := range []struct {
		bytes int
		move  func(from, to operand.Op)
	}{
		{16, v.VMOVDQU},
		{8, func(from, to operand.Op) { v.VMOVQ(from, to) }},
		{4, func(from, to operand.Op) { v.VMOVD(from, to) }},
	} {
		less := fmt.Sprintf("%sLess%d", name, c.bytes)
		if c.bytes > 4 {
			v.CMPQ(n, operand.U8(c.bytes))
			v.JL(operand.LabelRef(less))
		}
		write(c.bytes, c.move)
		if c.bytes > 4 {
			v.JMP(operand.LabelRef(name + "Done"))
			v.Label(less)
		}
	}
	v.Label(name + "Done")
}

func (v *vec) loadAll(sources []reg.Register, off reg.Register, i int) []value {
	var args []value
	for _, src := range sources {
		x := v.reg()
		v.move(v.at(src, off, i), x)
		args = append(args, x)
	}
	return args
}

func (v *vec) store(x value, dst, off reg.Register, i int) { v.move(x, v.at(dst, off, i)) }

// at returns the operand of the i-th vector after base+off.
func (v *vec) at(base, off reg.Register, i int) operand.Mem {
	return operand.Mem{Base: base, Index: off, Scale: 1, Disp: i * v.width}
}

func (v *vec) move(from, to operand.Op) {
	if v.masks {
		v.VMOVDQU64(from, to)
		return
	}
	v.VMOVDQU(from, to)
}

// reg returns a register of the level's width.
func (v *vec) reg() value {
	if v.width == 64 {
		return v.ZMM()
	}
	return v.YMM()
}

// half returns a register of half the width.
func (v *vec) half() value {
	if v.width == 64 {
		return v.YMM()
	}
	return v.XMM()
}

// constant returns a register in which every element has the given size in bytes and the value x.
func (v *vec) constant(bytes int, x uint64) value {
	var c operand.Constant
	var spread func(...operand.Op)
	switch bytes {
	case 1:
		c, spread = operand.U8(x), v.VPBROADCASTB
	case 2:
		c, spread = operand.U16(x), v.VPBROADCASTW
	case 4:
		c, spread = operand.U32(x), v.VPBROADCASTD
	case 8:
		c, spread = operand.U64(x), v.VPBROADCASTQ
	}
	// A constant is generated once per file, where it is first used.
	name := fmt.Sprintf("%sConst%dx%x", v.prefix, 8*bytes, x)
	mem := operand.NewDataAddr(operand.NewStaticSymbol(name), 0)
	if !v.known[name] {
		v.known[name] = true
		mem = v.ConstData(name, c)
	}
	r := v.reg()
	spread(mem, r)
	return r
}
