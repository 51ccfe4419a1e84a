//go:build !unix

package bootstrap

// openExits returns nil, because no launcher passes descriptors on this system.
func openExits(int, []int, bool) func(int) bool { return nil }

// writeJoined does nothing, for the same reason.
func writeJoined(int) {}
