//go:build !linux

package mesh

import "runtime"

// yieldCore gives way as far as this system lets us without cgo.
func yieldCore() { runtime.Gosched() }
