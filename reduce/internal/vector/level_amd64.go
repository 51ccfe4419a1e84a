package vector

import "golang.org/x/sys/cpu"

// Available lists the levels that this processor and its operating system have,
// in their order; None is always the first.
//
// Setting GODEBUG=cpu.avx512f=off or GODEBUG=cpu.avx2=off hides a level.
func Available() []Level {
	levels := []Level{None}
	if cpu.X86.HasAVX2 && cpu.X86.HasF16C && cpu.X86.HasFMA {
		levels = append(levels, AVX2)
		if wide() {
			levels = append(levels, AVX512)
		}
	}
	return levels
}

// wide reports whether the processor has AVX-512, and is of a generation that
// does not slow its clock down for it: VBMI2 came with Ice Lake and Zen 4. On
// the earlier ones the program around us would pay for our loops.
func wide() bool {
	x := &cpu.X86
	return x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL && x.HasAVX512VBMI2 && x.HasBMI2
}

// Kernels are the level's loops. The level must be an available one.
func (l Level) Kernels() Kernels {
	switch l {
	case AVX2:
		return avx2Kernels()
	case AVX512:
		return avx512Kernels()
	}
	return Kernels{}
}
