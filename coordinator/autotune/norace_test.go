//go:build !race

package autotune_test

const seeds = 6
