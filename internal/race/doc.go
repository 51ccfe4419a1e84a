// Package race tells the race detector about orderings that it cannot see.
//
// The detector knows Go's memory and packages syscall and net. Ranks of one process may reach each
// other by system calls of their own, or through memory that is mapped at two addresses. The
// detector then reports a race between what one rank did before a message and another one after
// it, even in the caller's code. Without the race detector this package does nothing.
package race
