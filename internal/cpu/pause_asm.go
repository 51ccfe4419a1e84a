//go:build amd64 || arm64

package cpu

// Pause tells the processor that its caller polls memory that another core will change. The
// processor then waits for some tens of nanoseconds. Meanwhile the other core can use the cache
// line or, if both are threads of one core, the execution units.
func Pause()
