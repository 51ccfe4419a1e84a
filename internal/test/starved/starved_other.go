//go:build !linux

package starved

import "time"

// Of returns 0, because only Linux reports the time that a process starved.
func Of(pid int) time.Duration { return 0 }

// Stolen returns 0, because only Linux reports it.
func Stolen() time.Duration { return 0 }
