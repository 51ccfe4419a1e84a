// Package starved tells tests how late a machine is with their processes: how long
// these were ready to run, and other programs had the processors.
//
// A test of a promise like "within a second" adds what its processes starved in that
// second: the promise is about a machine that has time for the program. What waits
// for an event does not starve, so a program that fails to wake up in time is late
// however busy the machine is. It knows of nothing that keeps a whole virtual machine
// from running, and of nothing but Linux, whose schedstat it reads.
package starved

import "time"

// Since returns a function that tells how long a process has starved since now.
func Since(pid int) func() time.Duration {
	before := Of(pid)
	return func() time.Duration { return max(0, Of(pid)-before) }
}
