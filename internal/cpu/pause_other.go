//go:build !amd64 && !arm64

package cpu

// Pause does nothing here; see pause_asm.go.
func Pause() {}
