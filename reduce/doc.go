// Package reduce holds the operators of reductions and the kernels that apply
// them to memory.
//
// An Op is what a program names: Sum, Max, a function of its own. Joined with a
// DType it gives a Kernel, which folds runs of elements:
//
//	dst[i] = earlier[i] op later[i]
//
// Which share is the earlier one is the algorithm's business, and stands in its
// header. A Kernel computes the same bits on every processor.
//
// # Which operator takes which type
//
// Every other pair is refused with fault.Misuse, before anything is sent.
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
// Integers wrap, as Go's do.
//
// Floats add and multiply as IEEE 754 says, to nearest, ties to even, each
// operation rounded by itself: nothing is fused. A NaN gives a NaN; which of its
// payloads a sum or product of float32, float64 or complex carries is the
// processor's choice, and all that may differ between processors.
//
// Float16 and bfloat16 are widened to float32, folded there, and rounded once
// per fold. Their NaNs come out as the canonical one.
//
// Complex products are (ac-bd) + (ad+bc)i, without C's extra care for
// infinities. Those of complex64 are computed in float64 and rounded once, as
// Go's own are.
//
// Mean is the sum, in the type itself, and one division by the number of ranks
// in Finish; a complex number's two parts are divided each by itself. A sum that
// overflows stays infinite.
//
// Min and max put -0 before +0, and NaN before all numbers: one NaN makes the
// result the canonical NaN, which is quiet, positive and has no payload
// (0x7ff8000000000000 for float64).
//
// Minloc and maxloc keep the value that min or max would give, and its index;
// between equal values (NaN among NaNs too) the lower index. Padding in a Loc
// means nothing and is not kept.
//
// The logical operators take every integer but 0 as true, and give 1 and 0. A
// bool is true unless its byte is 0. The bitwise operators on bool are the
// logical ones.
//
// Nothing is folded where there is one rank only: its share stays as it is,
// signalling NaNs and all.
//
// # Cost
//
// On amd64 a Kernel runs in the processor's vectors: AVX-512 or AVX2, whichever
// it has, for every operator and type but a program's own functions. Elsewhere, and for those, it runs in plain Go; sums of float32 and
// float64 in gonum's kernels. The bits are the same. GODEBUG=cpu.avx512f=off or
// cpu.avx2=off hides a processor's instructions.
//
// docs/kernels.md has their speeds, and the command that prints them.
//
// A vector loop takes memory at any alignment, and is not preempted for the time
// that 512 KiB take. The race detector is told of the memory that it uses.
//
// A Kernel does not allocate, unless it runs in plain Go and memory is not
// aligned for its element type: then it allocates two small blocks per call, and
// copies through them.
//
// The package does not know ranks, messages or algorithms.
package reduce
