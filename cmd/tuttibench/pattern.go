package main

import (
	"fmt"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/tensor"
)

// period is the number of elements after which the content of a vector repeats. It is prime, so
// that data at the offset of another segment or chunk is detected as wrong.
const period = 251

// A pattern is the content of a vector: element i is pattern[i%period].
type pattern[T comm.Element] [period]T

// A number converts an integer of at least 0 to an element. An integer that is too large wraps, as
// sums do.
type number[T comm.Element] func(v int) T

// maxAddend and maxMoved are the largest numbers that ranks send. Small numbers keep sums exact in
// every type. Operations that add nothing use larger numbers, which distinguish more ranks.
const (
	maxAddend = 3
	maxMoved  = 120
)

// share returns the number at index i of the vector that a rank sends, from 1 to limit.
func share(rank, i, limit int) int {
	mixed := uint32(i*7919+rank*104729+17) * 2654435761
	return 1 + int(mixed>>8)%limit
}

// moved returns the pattern that a rank sends in an operation that adds nothing.
func moved[T comm.Element](of number[T], rank int) (p pattern[T]) {
	for i := range p {
		p[i] = of(share(rank, i, maxMoved))
	}
	return p
}

// addend returns the pattern that a rank sends in an operation that adds the vectors of all ranks.
func addend[T comm.Element](of number[T], rank int) (p pattern[T]) {
	for i := range p {
		p[i] = of(share(rank, i, maxAddend))
	}
	return p
}

// sum returns the sum of the addends of n ranks.
func sum[T comm.Element](of number[T], n int) (p pattern[T]) {
	for i := range p {
		total := 0
		for rank := range n {
			total += share(rank, i, maxAddend)
		}
		p[i] = of(total)
	}
	return p
}

// fill writes the pattern into dst. The parameter first is the index of the pattern at which it
// starts.
func (p *pattern[T]) fill(dst []T, first int) {
	for len(dst) > 0 {
		n := copy(dst, p[first%period:])
		dst, first = dst[n:], first+n
	}
}

// wrong counts the elements of got that differ from the pattern. The parameter first is the index
// of the pattern for the first element of got.
func (p *pattern[T]) wrong(got []T, first int) int {
	wrong := 0
	for at := first % period; len(got) > 0; at = 0 {
		n := min(len(got), period-at)
		for i, want := range p[at : at+n] {
			if got[i] != want {
				wrong++
			}
		}
		got = got[n:]
	}
	return wrong
}

// dtypeNames returns the names of the element types that can be summed, as -dtype accepts them.
func dtypeNames() []string {
	var names []string
	for _, d := range tensor.DTypes() {
		if exactUpTo(d) > 0 {
			names = append(names, d.String())
		}
	}
	return names
}

// exactUpTo returns the largest sum that is exact in an element type. For a type without sums it
// returns 0.
func exactUpTo(d tensor.DType) int {
	switch d {
	case tensor.Int8, tensor.Int16, tensor.Int32, tensor.Int64,
		tensor.Uint8, tensor.Uint16, tensor.Uint32, tensor.Uint64:
		return 1 << 30 // integers wrap, and so does the expected sum
	case tensor.BF16:
		return 1 << 8
	case tensor.F16:
		return 1 << 11
	case tensor.Float32, tensor.Complex64, tensor.Float64, tensor.Complex128:
		return 1 << 24
	}
	return 0
}

// vectorsFor makes the buffers for an element type.
func vectorsFor(c *comm.Comm, o options, largest int) (vectors, error) {
	if most := exactUpTo(o.dtype) / maxAddend; c.Size() > most {
		return nil, fmt.Errorf("got %d ranks, want at most %d: with more ranks, sums of %v are not exact", c.Size(), most, o.dtype)
	}
	switch o.dtype {
	case tensor.Int8:
		return newTypedVectors(c, o, largest, integer[int8]), nil
	case tensor.Int16:
		return newTypedVectors(c, o, largest, integer[int16]), nil
	case tensor.Int32:
		return newTypedVectors(c, o, largest, integer[int32]), nil
	case tensor.Int64:
		return newTypedVectors(c, o, largest, integer[int64]), nil
	case tensor.Uint8:
		return newTypedVectors(c, o, largest, integer[uint8]), nil
	case tensor.Uint16:
		return newTypedVectors(c, o, largest, integer[uint16]), nil
	case tensor.Uint32:
		return newTypedVectors(c, o, largest, integer[uint32]), nil
	case tensor.Uint64:
		return newTypedVectors(c, o, largest, integer[uint64]), nil
	case tensor.Float32:
		return newTypedVectors(c, o, largest, integer[float32]), nil
	case tensor.Float64:
		return newTypedVectors(c, o, largest, integer[float64]), nil
	case tensor.F16:
		return newTypedVectors(c, o, largest, func(v int) tensor.Float16 { return tensor.Float16From(float32(v)) }), nil
	case tensor.BF16:
		return newTypedVectors(c, o, largest, func(v int) tensor.BFloat16 { return tensor.BFloat16From(float32(v)) }), nil
	case tensor.Complex64:
		return newTypedVectors(c, o, largest, func(v int) complex64 { return complex(float32(v), -float32(v)) }), nil
	case tensor.Complex128:
		return newTypedVectors(c, o, largest, func(v int) complex128 { return complex(float64(v), -float64(v)) }), nil
	}
	return nil, fmt.Errorf("%v has no sum", o.dtype)
}

// integer converts v as Go does: high bits that do not fit into T are dropped.
func integer[T interface {
	int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64 | float32 | float64
}](v int) T {
	return T(v)
}
