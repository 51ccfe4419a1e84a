// Package reduce holds the operators of reductions and the kernels that apply
// them to memory.
//
// An Op is the operator that a program names, such as Sum, Max, or a function of the program. For
// one element type, Op.Kernel returns its Kernel, which folds slices of elements:
//
//	dst[i] = earlier[i] op later[i]
//
// The algorithm of the collective decides which share is the earlier one, and its header documents
// the order. A Kernel computes the same bits on every processor.
//
// # Which operator takes which type
//
// For a pair without a yes, a collective returns fault.Misuse before anything is sent.
//
//	operator     int  uint  float  complex  bool  loc
//	sum          yes  yes   yes    yes      -     -
//	prod         yes  yes   yes    yes      -     -
//	mean         -    -     yes    yes      -     -
//	min          yes  yes   yes    -        -     -
//	max          yes  yes   yes    -        -     -
//	minloc       -    -     -      -        -     yes
//	maxloc       -    -     -      -        -     yes
//	logical_and  yes  yes   -      -        yes   -
//	logical_or   yes  yes   -      -        yes   -
//	logical_xor  yes  yes   -      -        yes   -
//	bit_and      yes  yes   -      -        yes   -
//	bit_or       yes  yes   -      -        yes   -
//	bit_xor      yes  yes   -      -        yes   -
//
// Each word stands for all its sizes; float is float16, bfloat16, float32 and
// float64.
//
// # What the operators mean
//
// Integers wrap, as in Go.
//
// Floats are added and multiplied according to IEEE 754, with rounding to nearest and ties to even.
// Each operation is rounded separately, because none are fused. A NaN in an operand gives a NaN.
// Only one property of results depends on the processor: the payload of a NaN in a sum or product
// of float32, float64 or complex.
//
// Float16 and bfloat16 are widened to float32, folded there, and rounded once per fold. Every NaN
// in a result is the canonical NaN.
//
// Complex products are (ac-bd) + (ad+bc)i, without C's special treatment of infinities. Products of
// complex64 are computed in float64 and rounded once, as in Go.
//
// Mean computes the sum in the element type. Finish then divides it once by the number of ranks.
// The two parts of a complex number are divided separately. A sum that overflows stays infinite.
//
// Min and max treat -0 as smaller than +0. If an operand is a NaN, the result is the canonical NaN,
// which is quiet, positive and has no payload (0x7ff8000000000000 for float64).
//
// Minloc and maxloc keep the value that min or max would give, and its index. Of two equal values
// they keep the lower index; NaNs count as equal. Padding in a Loc means nothing and is not kept.
//
// The logical operators treat every integer except 0 as true. Their results are 1 and 0. A bool is
// true unless its byte is 0. On bool, the bitwise operators equal the logical operators.
//
// With one rank, nothing is folded. The rank's share does not change, even if it has signalling
// NaNs.
//
// # Cost
//
// On amd64 a Kernel uses AVX-512 or AVX2 if the processor has it, for every operator and type
// except functions of the program. Otherwise it runs in plain Go, with gonum's kernels for sums of
// float32 and float64. Both give the same bits. GODEBUG=cpu.avx512f=off or cpu.avx2=off hides a
// processor's instructions. docs/kernels.md has the speeds, and the command that measures them.
//
// A vector loop accepts memory at any alignment. It cannot be preempted while it handles up to 512
// KiB. It reports the memory that it uses to the race detector.
//
// A Kernel does not allocate, with one exception: in plain Go, memory that is not
// aligned for its element type is copied through two small blocks per call.
//
// The package does not know ranks, messages or algorithms.
package reduce
