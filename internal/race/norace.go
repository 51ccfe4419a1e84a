//go:build !race

package race

// Release is called before a message leaves.
func Release() {}

// Acquire is called when a message has come.
func Acquire() {}

// MarkShared says that mem, which is not empty, may be mapped elsewhere, too, until Unmapped.
func MarkShared([]byte) {}

// UnmarkShared takes back what Mapped said of mem. It is called while it is still there.
func UnmarkShared([]byte) {}

// IsShared reports whether mem was Mapped.
func IsShared([]byte) bool { return false }
