// Package cpu gives access to features of the processor that Go's standard library does not offer:
// hints for loops that poll shared memory, prefetching, stores past the caches, and the core that a
// thread runs on.
//
// Each function also exists on processors and systems without the feature, and then uses an
// ordinary substitute or does nothing.
package cpu
