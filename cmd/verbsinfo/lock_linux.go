package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// wantLocked is the amount of memory that a rank with a few peers locks: rings, message buffers,
// and the registrations that it caches by default.
const wantLocked = 1 << 30

// lockable reports how much memory this program may register.
func lockable() string {
	var l unix.Rlimit
	switch err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l); {
	case err != nil:
		return fmt.Sprintf("memory that may be locked: not known: %v", err)
	case l.Cur == unix.RLIM_INFINITY:
		return "memory that may be locked: unlimited"
	case l.Cur < wantLocked:
		return fmt.Sprintf("memory that may be locked: %d bytes, which is little; see docs/verbs.md", l.Cur)
	default:
		return fmt.Sprintf("memory that may be locked: %d bytes", l.Cur)
	}
}
