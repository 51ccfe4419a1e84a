//go:build !amd64

package vector

// Available lists the levels that this processor and its operating system have:
// None.
func Available() []Level { return []Level{None} }

// Kernels are the level's loops, of which there are none.
func (l Level) Kernels() Kernels { return Kernels{} }
