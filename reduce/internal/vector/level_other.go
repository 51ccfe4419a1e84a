//go:build !amd64

package vector

// Available lists the levels that the processor and the operating system support: only None.
func Available() []Level { return []Level{None} }

// Kernels returns no loops.
func (l Level) Kernels() Kernels { return Kernels{} }
