//go:build !race

package race

// Leaves is called before a message leaves.
func Leaves() {}

// Came is called when a message has come.
func Came() {}

// Mapped says that mem, which is not empty, may be mapped elsewhere, too, until Unmapped.
func Mapped([]byte) {}

// Unmapped takes back what Mapped said of mem. It is called while it is still there.
func Unmapped([]byte) {}

// IsMapped reports whether mem was Mapped.
func IsMapped([]byte) bool { return false }
