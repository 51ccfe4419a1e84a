package compress

import "github.com/tutti-go/tutti/tensor"

// Narrow multiplies the float32 or float64 elements of src by factor, and writes them to dst as
// 16-bit floats.
func Narrow(wire tensor.DType, dst []byte, d tensor.DType, src []byte, factor float64) {
	if d == tensor.Float32 {
		narrowFrom(wire, dst, tensor.Elements[float32](src), float32(factor))
		return
	}
	narrowFrom(wire, dst, tensor.Elements[float64](src), factor)
}

// narrowFrom multiplies each element by factor in the element's own type, and then rounds it once.
func narrowFrom[T float32 | float64](wire tensor.DType, dst []byte, src []T, factor T) {
	if wire == tensor.F16 {
		out := tensor.Elements[tensor.Float16](dst)
		for i, v := range src {
			out[i] = tensor.Float16From(float32(v * factor))
		}
		return
	}
	out := tensor.Elements[tensor.BFloat16](dst)
	for i, v := range src {
		out[i] = tensor.BFloat16From(float32(v * factor))
	}
}

// Widen converts 16-bit floats to float32 or float64. The conversion is exact.
func Widen(d tensor.DType, dst []byte, wire tensor.DType, src []byte) {
	if d == tensor.Float32 {
		widenTo(tensor.Elements[float32](dst), wire, src)
		return
	}
	widenTo(tensor.Elements[float64](dst), wire, src)
}

// widenTo converts 16-bit floats to type T. It is exact, because every 16-bit float is a float32.
func widenTo[T float32 | float64](dst []T, wire tensor.DType, src []byte) {
	if wire == tensor.F16 {
		for i, v := range tensor.Elements[tensor.Float16](src) {
			dst[i] = T(v.Float32())
		}
		return
	}
	for i, v := range tensor.Elements[tensor.BFloat16](src) {
		dst[i] = T(v.Float32())
	}
}
