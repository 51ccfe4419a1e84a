//go:build amd64 || arm64

package callsite

// framePCs walks the frame pointers, from its caller's frame on, and stores return addresses. It
// takes about a nanosecond per frame. runtime.Callers takes hundreds of nanoseconds in all, because
// it unwinds by tables and expands inlined calls. In this package, Site.String expands inlined
// calls.
//
//go:noescape
func framePCs(pcs *[depth]uintptr) int
