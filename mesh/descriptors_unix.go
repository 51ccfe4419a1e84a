//go:build unix

package mesh

import (
	"math"
	"syscall"
)

// descriptorLimit returns how many file descriptors this process may have open, or -1 if the limit
// is unknown.
func descriptorLimit() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return -1
	}
	return int(min(uint64(limit.Cur), math.MaxInt32))
}
