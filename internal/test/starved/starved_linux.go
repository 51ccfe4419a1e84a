package starved

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Of returns how long the threads of a process have waited for a processor so far, all together; 0
// for a process that has ended.
func Of(pid int) (total time.Duration) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid)) // the pattern is well-formed
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // the thread has ended meanwhile
		}
		fields := strings.Fields(string(text)) // time on a processor, time waited for one, in ns; turns
		if len(fields) < 2 {
			continue
		}
		waited, _ := strconv.ParseInt(fields[1], 10, 64)
		total += time.Duration(waited)
	}
	return total
}
