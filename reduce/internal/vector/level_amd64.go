package vector

import "golang.org/x/sys/cpu"

// Available lists the levels that the processor and the operating system support, in ascending
// order. None is always the first.
//
// GODEBUG=cpu.avx512f=off and GODEBUG=cpu.avx2=off hide a level.
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

// wide reports whether the processor has AVX-512 and does not lower its clock for it. VBMI2 came
// with Ice Lake and Zen 4. Earlier processors lower their clock, which would slow down the rest of
// the program.
func wide() bool {
	x := &cpu.X86
	return x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL && x.HasAVX512VBMI2 && x.HasBMI2
}

// Kernels returns the loops of an available level.
func (l Level) Kernels() Kernels {
	switch l {
	case AVX2:
		return avx2Kernels()
	case AVX512:
		return avx512Kernels()
	}
	return Kernels{}
}
