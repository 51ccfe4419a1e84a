//go:build !amd64 && !arm64

package callsite

import "runtime"

// framePCs finds the return addresses above its caller.
func framePCs(pcs *[depth]uintptr) int { return runtime.Callers(2, pcs[:]) }
