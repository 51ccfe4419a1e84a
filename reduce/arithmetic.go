package reduce

import (
	"unsafe"

	"github.com/tutti-go/tutti/tensor"
)

// Each loop of this package first reslices its operands to the length of dst, so that the compiler
// omits the bounds checks in the loop.

// The constraint integer lists the integer types that have their own loops.
type integer interface {
	int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64
}

// The constraint float lists the floating-point types with arithmetic in Go.
type float interface{ float32 | float64 }

// The constraint number lists the types that have sums and products in Go.
type number interface{ integer | float }

// sum is the loop of Sum. Integers wrap around, as in Go.
func sum[T number](dst, earlier, later []T) {
	earlier, later = earlier[:len(dst)], later[:len(dst)]
	for i := range dst {
		dst[i] = earlier[i] + later[i]
	}
}

// prod is the loop of Prod.
func prod[T number](dst, earlier, later []T) {
	earlier, later = earlier[:len(dst)], later[:len(dst)]
	for i := range dst {
		dst[i] = earlier[i] * later[i]
	}
}

// divide is the last step of Mean.
func divide[T float](buf []T, ranks int) {
	n := T(ranks)
	for i := range buf {
		buf[i] /= n
	}
}

// An axpy is a function of gonum that computes y += alpha*x for n elements. On amd64 it is written
// in assembly. If alpha is 1, the product is exact, so every processor adds and rounds once.
type axpy[T float] func(n int, alpha T, x []T, incX int, y []T, incY int)

// axpyBlock is the number of elements in a block, for a dst that holds neither operand. A block of
// one operand is copied to dst, and then the other operand is added. A block is short enough to
// stay in the first-level cache.
const axpyBlock = 1024

// axpyLeast is the smallest number of elements for which a call of axpy is faster than a Go loop.
const axpyLeast = 16

// sum is the loop of Sum that calls plus. axpy adds to one of its operands in place, so there are
// three cases. dst may be the slice later or the slice earlier. Otherwise blocks of later are first
// copied to dst. An exchange of the operands does not change a bit of a sum.
func (plus axpy[T]) sum(dst, earlier, later []T) {
	if len(dst) < axpyLeast {
		sum(dst, earlier, later)
		return
	}
	switch unsafe.SliceData(dst) {
	case unsafe.SliceData(later):
		plus(len(dst), 1, earlier, 1, dst, 1)
		return
	case unsafe.SliceData(earlier):
		plus(len(dst), 1, later, 1, dst, 1)
		return
	}
	for len(dst) > 0 {
		n := copy(dst[:min(len(dst), axpyBlock)], later)
		plus(n, 1, earlier, 1, dst, 1)
		dst, earlier, later = dst[n:], earlier[n:], later[n:]
	}
}

// The explicit conversions around the products below prevent the compiler from fusing product
// and sum, as it would on arm64. The Go specification guarantees this effect.

// prodComplex64 multiplies in float64, where the products are exact.
func prodComplex64(dst, earlier, later []complex64) {
	earlier, later = earlier[:len(dst)], later[:len(dst)]
	for i := range dst {
		a, b := float64(real(earlier[i])), float64(imag(earlier[i]))
		c, d := float64(real(later[i])), float64(imag(later[i]))
		dst[i] = complex(float32(float64(a*c)-float64(b*d)), float32(float64(a*d)+float64(b*c)))
	}
}

// prodComplex128 rounds each product and each sum, as the package comment promises.
func prodComplex128(dst, earlier, later []complex128) {
	earlier, later = earlier[:len(dst)], later[:len(dst)]
	for i := range dst {
		a, b := real(earlier[i]), imag(earlier[i])
		c, d := real(later[i]), imag(later[i])
		dst[i] = complex(float64(a*c)-float64(b*d), float64(a*d)+float64(b*c))
	}
}

// The short floats have separate loops, because a generic loop would call their conversions instead
// of inlining them.

// sumFloat16 adds in float32 and rounds once.
func sumFloat16(dst, earlier, later []tensor.Float16) {
	earlier, later = earlier[:len(dst)], later[:len(dst)]
	for i := range dst {
		dst[i] = tensor.Float16From(earlier[i].Float32() + later[i].Float32())
	}
}

// prodFloat16 multiplies in float32, where the product is exact, and rounds once.
func prodFloat16(dst, earlier, later []tensor.Float16) {
	earlier, later = earlier[:len(dst)], later[:len(dst)]
	for i := range dst {
		dst[i] = tensor.Float16From(earlier[i].Float32() * later[i].Float32())
	}
}

// divideFloat16 is the last step of Mean.
func divideFloat16(buf []tensor.Float16, ranks int) {
	n := float32(ranks)
	for i := range buf {
		buf[i] = tensor.Float16From(buf[i].Float32() / n)
	}
}

// sumBFloat16 adds in float32 and rounds once.
func sumBFloat16(dst, earlier, later []tensor.BFloat16) {
	earlier, later = earlier[:len(dst)], later[:len(dst)]
	for i := range dst {
		dst[i] = tensor.BFloat16From(earlier[i].Float32() + later[i].Float32())
	}
}

// prodBFloat16 multiplies in float32, where the product is exact, and rounds once.
func prodBFloat16(dst, earlier, later []tensor.BFloat16) {
	earlier, later = earlier[:len(dst)], later[:len(dst)]
	for i := range dst {
		dst[i] = tensor.BFloat16From(earlier[i].Float32() * later[i].Float32())
	}
}

// divideBFloat16 is the last step of Mean.
func divideBFloat16(buf []tensor.BFloat16, ranks int) {
	n := float32(ranks)
	for i := range buf {
		buf[i] = tensor.BFloat16From(buf[i].Float32() / n)
	}
}
