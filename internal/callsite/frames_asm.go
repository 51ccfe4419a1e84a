//go:build amd64 || arm64

package callsite

// framePCs walks the frame pointers from its caller's frame on, and stores
// return addresses. It takes about a nanosecond per frame, where runtime.Callers
// takes hundreds for all: it unwinds by tables, and sees inlined calls at once;
// here they are found when somebody asks.
//
//go:noescape
func framePCs(pcs *[depth]uintptr) int
