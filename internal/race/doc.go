// Package race tells the race detector of order that it cannot see. It knows what Go's
// memory and packages syscall and net do. Where ranks of one process reach each other
// by system calls of their own, or by memory that is mapped at two places, it takes what
// one did before a message and another one after it for a race, in the caller's code,
// too. Without the race detector nothing here does anything.
package race
