//go:build amd64 || arm64

package spin

// Pause tells the processor that its caller looks again and again at memory that
// another core is to change: it leaves what it has in common with that core, the
// line itself or, where the two are threads of one core, everything, for some tens
// of nanoseconds to the other.
func Pause()
