// Package race tells the race detector about orderings that it cannot see.
//
// The detector sees orderings through Go's memory and through packages syscall and net. Ranks of
// one process may also exchange messages by direct system calls, or through memory that is mapped
// at two addresses. The detector then reports a race between an access of the sender before the
// message and an access of the receiver after it, even in the caller's code. Without the race
// detector this package does nothing.
package race
