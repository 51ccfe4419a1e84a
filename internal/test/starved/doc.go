// Package starved measures how long processes were ready to run while other programs had the
// processors.
//
// A test of a promise like "within a second" adds the time that its processes starved in that
// second: the promise is about a machine that has time for the program. A process that waits for an
// event does not starve, so a program that misses a wake-up is late however busy the machine is.
//
// It reads Linux's schedstat, and reports 0 elsewhere. It does not see pauses of a whole virtual
// machine.
package starved

import "time"

// Since returns a function that reports how long a process has starved since now.
func Since(pid int) func() time.Duration {
	before := Of(pid)
	return func() time.Duration { return max(0, Of(pid)-before) }
}
