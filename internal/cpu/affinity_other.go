//go:build !linux

package cpu

import "runtime"

// Yield gives the core to another goroutine, because this package knows no stronger call on this
// system.
func Yield() { runtime.Gosched() }

// CurrentCore returns -1, because this system does not report the core.
func CurrentCore() int { return -1 }

// AvoidCore does nothing, because the system chooses the cores.
func AvoidCore(int) {}
