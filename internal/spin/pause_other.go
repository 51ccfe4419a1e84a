//go:build !amd64 && !arm64

package spin

// Pause does nothing here; see pause_asm.go.
func Pause() {}
