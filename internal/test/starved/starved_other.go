//go:build !linux

package starved

import "time"

// Of returns 0: only Linux reports it.
func Of(pid int) time.Duration { return 0 }
