//go:build !race

package race

// Release does nothing; see race.go.
func Release() {}

// Acquire does nothing; see race.go.
func Acquire() {}

// MarkShared does nothing; see race.go.
func MarkShared([]byte) {}

// UnmarkShared does nothing; see race.go.
func UnmarkShared([]byte) {}

// IsShared returns false; see race.go.
func IsShared([]byte) bool { return false }
