//go:build race

package autotune_test

// Under the race detector there is nothing to find here, and everything is slow.
const seeds = 1
