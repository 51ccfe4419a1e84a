//go:build !amd64 && !arm64

package cpu

// PrefetchWrite does nothing here; see prefetch_asm.go.
func PrefetchWrite(*uint64) {}

// PrefetchRead does nothing here; see prefetch_asm.go.
func PrefetchRead(*uint64) {}
