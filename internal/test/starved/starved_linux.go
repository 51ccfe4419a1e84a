package starved

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Of returns the total time for which the threads of a process have waited for a processor so far.
// For a process that has ended it returns 0.
func Of(pid int) (total time.Duration) {
	// Glob cannot fail, because the pattern is well-formed.
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // the thread has ended meanwhile
		}
		// The fields are the time on a processor and the time waited for a processor, in ns, and
		// the number of turns.
		fields := strings.Fields(string(text))
		if len(fields) < 2 {
			continue
		}
		waited, _ := strconv.ParseInt(fields[1], 10, 64)
		total += time.Duration(waited)
	}
	return total
}

// Stolen returns the time that the host of a virtual machine has taken from all processors since
// the machine was started. Between two calls it grows by at least as much as any process has lost.
func Stolen() time.Duration {
	stat, _ := os.ReadFile("/proc/stat")
	return stolen(string(stat))
}

// stolen returns the time that the host took from all processors, by the text of /proc/stat.
func stolen(stat string) time.Duration {
	const (
		field = 8                     // of the first line: cpu user nice system idle iowait irq softirq steal
		tick  = 10 * time.Millisecond // the kernel's unit for programs
	)
	first, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(first)
	if len(fields) <= field {
		return 0
	}
	ticks, _ := strconv.ParseInt(fields[field], 10, 64)
	return time.Duration(ticks) * tick
}
