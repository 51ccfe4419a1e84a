// Package starved measures how long processes were ready to run while other programs had the
// processors.
//
// A test with a time limit adds the time that its processes starved to the limit, because the
// library's promise holds only while the program can run. A process that waits for an event does
// not starve. So the test still detects a program that misses a wake-up, even on a busy machine.
//
// It reads Linux's schedstat and, in a virtual machine, the time for which the host gave the
// machine's processors to others. A sum over several processes must count the latter once. It
// reports 0 on other systems.
package starved

import (
	"regexp"
	"time"
)

// Since returns a function that reports how long a process has starved since now. In a virtual
// machine it includes the time that the host has taken from it.
func Since(pid int) func() time.Duration {
	before, stolen := Of(pid), Stolen()
	return func() time.Duration { return max(0, Of(pid)-before) + Stolen() - stolen }
}

// runsLate matches the words by which a failure names how late the lost rank ran.
var runsLate = regexp.MustCompile(`a rank that runs (\S+) late`)

// Granted returns how much later a lost rank was reported because it ran late. A rank whose
// heartbeats say that it runs late may be silent for longer. The limit on silence, and the time to
// refute after that, both grow by this delay for each heartbeat that fits in the limit; see package
// membership. The parameter text is the failure's text, which names the delay.
func Granted(text string, silence, heartbeat time.Duration) time.Duration {
	m := runsLate.FindStringSubmatch(text)
	if m == nil {
		return 0
	}
	delay, _ := time.ParseDuration(m[1])
	return 2 * delay * (silence / heartbeat)
}
