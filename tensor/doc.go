// Package tensor names element types, and describes where elements lie in memory.
//
// A DType is an element type at run time and on the wire. Element is the constraint for the same
// set of types. TypeOf maps a Go type to its DType:
//
//	dtype            bytes  Go types
//	int8 … int64     1…8    int8 … int64, and int as the one of its size
//	uint8 … uint64   1…8    uint8 … uint64, and uint as the one of its size
//	float16          2      Float16 (IEEE 754 binary16)
//	bfloat16         2      BFloat16 (the upper half of a float32)
//	float32, float64 4, 8   float32, float64
//	complex64, 128   8, 16  complex64, complex128
//	bool             1      bool
//	loc[v]           16     Loc[v], for every v above but complex and bool
//
// A named type counts as the basic type that it is based on. Multi-byte elements are in the host's
// byte order; the handshake refuses ranks of another order. loc[v] has the size that the compiler
// gives it, 16 bytes on 64-bit hosts. The padding of a Loc is sent, but means nothing.
//
// A View is a matrix within a slice. Making a View copies no elements. The methods of a View access
// no element outside the View. The function Chunk defines how all packages cut vectors.
//
// The package does not know operators, ranks or wires.
package tensor
