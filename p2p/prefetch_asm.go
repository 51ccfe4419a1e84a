//go:build amd64 || arm64

package p2p

// fetchToWrite has the processor take the line of p from whoever has it, so that a
// store to it soon need not wait for that. It waits for nothing.
//
//go:noescape
func fetchToWrite(p *uint64)

// fetchToRead has the processor bring the line of p here. It waits for nothing.
//
//go:noescape
func fetchToRead(p *uint64)
