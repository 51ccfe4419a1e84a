//go:build amd64 || arm64

package cpu

// PrefetchWrite fetches the cache line of p for writing, so that a store soon afterwards does not
// wait until another core gives up the line. It does not block, and p need not be aligned.
//
//go:noescape
func PrefetchWrite(p *uint64)

// PrefetchRead fetches the cache line of p for reading. It does not block.
//
//go:noescape
func PrefetchRead(p *uint64)
