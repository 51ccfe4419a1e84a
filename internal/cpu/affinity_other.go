//go:build !linux

package cpu

import (
	"errors"
	"io/fs"
	"runtime"
)

// Yield gives the core to another goroutine, because this package knows no stronger call on this
// system.
func Yield() { runtime.Gosched() }

// CurrentCore returns -1, because this system does not report the core.
func CurrentCore() int { return -1 }

// AvoidCore does nothing, because the system chooses the cores.
func AvoidCore(int) {}

// allowedThreads returns nil, because this system does not tell which threads a process may use.
func allowedThreads() ([]int, fs.FS) { return nil, nil }

// WithThreads returns an error, because this system does not bind processes to processors.
func WithThreads([]int, func() error) error {
	return errors.New("this system binds no process to processors; use --bind-to none")
}
