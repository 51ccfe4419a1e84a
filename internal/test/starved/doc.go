// Package starved measures how long processes were ready to run while other programs had the
// processors.
//
// A test with a time limit adds the time that its processes starved to the limit, because the
// library's promise holds only while the program can run. A process that waits for an event does
// not starve. So the test still detects a program that misses a wake-up, even on a busy machine.
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
