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
