//go:build !race

package coordinator_test

const raceEnabled = false
