//go:build !linux

package mesh

import "runtime"

// yieldCore gives way as far as this system lets us without cgo.
func yieldCore() { runtime.Gosched() }

// currentCore would be the core that the caller runs on; it is not known.
func currentCore() int { return -1 }

// avoidCore leaves the choice of cores to the system.
func avoidCore(int) {}
