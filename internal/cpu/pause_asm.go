//go:build amd64 || arm64

package cpu

// Pause tells the processor that its caller polls memory that another core will change. For some
// tens of nanoseconds the processor gives the other core what the two share: the cache line or, for
// two threads of one core, the execution units.
func Pause()
