//go:build !linux

package cpu

import "runtime"

// Yield gives way as far as the Go scheduler allows: to another goroutine.
func Yield() { runtime.Gosched() }

// CurrentCore returns -1: the core is not known here.
func CurrentCore() int { return -1 }

// AvoidCore does nothing: the choice of cores is left to the system.
func AvoidCore(int) {}
