// Package vector holds loops in the processor's vector instructions: AVX2 and AVX-512 on amd64, and
// none elsewhere. It has a loop for each operator and element type for which a loop in Go would be
// slower than the memory.
//
// The program in gen generates the assembly (make generate). The assembly is checked in. make lint
// compares it with what the program generates.
//
// Every loop computes the bits that package reduce promises. These are the same at every level,
// because no operations are fused or approximated. A loop reads and writes no byte outside its
// operands, at any alignment. The destination may be the same memory as an operand. Other overlaps
// are not allowed.
//
// While a loop runs, its goroutine cannot be preempted, so callers pass long operands in blocks.
//
// The package does not know which level its callers choose, and knows no loops in Go.
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

// String returns the level's name, such as "avx2".
func (l Level) String() string { return [...]string{"none", "avx2", "avx512"}[l] }

// Kernels are the loops of one level.
type Kernels struct {
	Shortest  int // the smallest number of bytes for which a loop may be called
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
