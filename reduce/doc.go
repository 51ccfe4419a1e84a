// Package reduce holds the operators of reductions and the kernels that apply
// them to memory.
//
// An Op is the operator that a program names: Sum, Max, or a function of its own. For
// one element type, Op.Kernel returns its Kernel, which folds slices of elements:
//
//	dst[i] = earlier[i] op later[i]
//
// The algorithm decides which share is the earlier one; its header documents that. A
// Kernel computes the same bits on every processor.
//
// # Which operator takes which type
//
// Every other pair is fault.Misuse, before anything is sent.
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
// operation rounded by itself: nothing is fused. A NaN gives a NaN. The payload of a
// NaN in a sum or product of float32, float64 or complex depends on the processor;
// nothing else does.
//
// Float16 and bfloat16 are widened to float32, folded there, and rounded once
// per fold. Their NaNs come out as the canonical one.
//
// Complex products are (ac-bd) + (ad+bc)i, without C's extra care for
// infinities. Those of complex64 are computed in float64 and rounded once, as
// Go's own are.
//
// Mean is the sum, in the type itself, and one division by the number of ranks in
// Finish. The two parts of a complex number are divided separately. A sum that
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
// The logical operators treat every integer but 0 as true, and give 1 and 0. A
// bool is true unless its byte is 0. The bitwise operators on bool are the
// logical ones.
//
// With one rank, nothing is folded. Its share stays as it is, signalling NaNs
// included.
//
// # Cost
//
// On amd64 a Kernel uses AVX-512 or AVX2, if the processor has it, for every operator
// and type but a program's own functions. Otherwise it runs in plain Go, with gonum's
// kernels for sums of float32 and float64. The bits are the same.
// GODEBUG=cpu.avx512f=off or cpu.avx2=off hides a processor's instructions.
// docs/kernels.md has the speeds, and the command that measures them.
//
// A vector loop accepts memory at any alignment, and is not preempted for up to
// 512 KiB. It reports the memory that it uses to the race detector.
//
// A Kernel does not allocate, with one exception: in plain Go, memory that is not
// aligned for its element type is copied through two small blocks per call.
//
// The package does not know ranks, messages or algorithms.
package reduce
