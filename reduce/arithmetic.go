package reduce

import (
	"unsafe"

	"github.com/tutti-go/tutti/tensor"
)

// The loops of this package first reslice their operands to dst's length, so that the
// compiler omits the bounds checks inside.

// integer lists the integer types that have loops of their own.
type integer interface {
	int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64
}

// float lists the floats that Go computes with.
type float interface{ float32 | float64 }

// number lists the types that have sums and products in Go.
type number interface{ integer | float }

// sum is the loop of Sum. Integers wrap around, as Go's do.
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

// An axpy is gonum's y += alpha*x over n elements, in assembly on amd64. With alpha 1 the
// product is exact, so every processor adds and rounds once.
type axpy[T float] func(n int, alpha T, x []T, incX int, y []T, incY int)

// axpyBlock is the number of elements that are copied before they are added to, when dst is
// memory of its own. They are few enough to stay in the first-level cache.
const axpyBlock = 1024

// axpyLeast is the smallest number of elements for which the call is faster than a Go loop.
const axpyLeast = 16

// sum is the loop of Sum that calls plus. axpy adds to one of its operands in place, so there
// are three cases: dst is later, dst is earlier, or dst is other memory, into which blocks of
// later are copied first. Addition commutes, also for the bits of its result, so the operands
// may be exchanged.
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

// The short floats have loops of their own, because a loop generic over both
// would call their conversions instead of inlining them.

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
