// Package cpu holds what this module asks of the processor below what Go offers: hints for loops
// that poll shared memory, prefetching, stores past the caches, and the core that a thread runs on.
//
// It knows instructions and scheduler calls, and nothing of what they are used for. On a processor
// or a system without one of them the function is still there and does the ordinary thing.
package cpu
