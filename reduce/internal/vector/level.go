// Package vector holds loops in the processor's vector instructions: AVX2 and
// AVX-512 on amd64, and none elsewhere. It has one loop for each operator and
// element type for which plain Go is slower than memory.
//
// The program in gen generates the assembly (make generate). It is checked in, and
// make lint compares it with what the program generates.
//
// Every loop computes the bits that package reduce promises, which are the same
// at every level: no result is fused or approximated. It reads and
// writes no byte beside its operands, at any alignment. A destination may be the
// very memory of an operand; other overlaps are not allowed.
//
// While a loop runs, its goroutine cannot be preempted, so callers hand over
// long memory in pieces.
//
// The package does not know which level is used, and knows no other loops than
// its own.
package vector

import "github.com/tutti-go/tutti/tensor"

// A Level is a set of vector instructions.
type Level uint8

// The levels. Each includes the instructions of the levels before it.
const (
	None   Level = iota // no vector loops
	AVX2                // AVX2, F16C and FMA, on vectors of 32 bytes
	AVX512              // AVX-512 F, BW, DQ and VL with VBMI2, and BMI2, on vectors of 64 bytes
)

// String returns the level's name, as "avx2".
func (l Level) String() string { return [...]string{"none", "avx2", "avx512"}[l] }

// Kernels are the loops of one level.
type Kernels struct {
	Shortest  int // the number of bytes that a loop must get at least
	Folds     []FoldOf
	Divisions []DivisionOf
}

// A FoldOf is the fold of an operator, by its name in package reduce, for one element type.
type FoldOf struct {
	Op   string
	Type tensor.DType
	Fold Fold
}

// A Fold sets n bytes of whole elements at dst to op(earlier, later).
type Fold func(dst, earlier, later *byte, n int)

// A DivisionOf is the division of one element type.
type DivisionOf struct {
	Type   tensor.DType
	Divide Divide
}

// A Divide divides n bytes of whole elements at buf. The divisor is exact in the type that the
// division is computed in.
type Divide func(buf *byte, n int, divisor float64)
