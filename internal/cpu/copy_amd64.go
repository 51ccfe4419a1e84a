package cpu

import (
	"unsafe"

	xcpu "golang.org/x/sys/cpu"
)

// avx2 copies n bytes to dst. n must be a multiple of block and not 0, and the address dst a
// multiple of align.
//
//go:noescape
func avx2(dst, src *byte, n int)

const (
	align = 32
	block = 128

	// maxChunk is the number of bytes that one call of avx2 copies. It is limited because a
	// goroutine cannot be preempted while avx2 runs.
	maxChunk = 256 << 10
)

func copyStreaming(dst, src []byte) int {
	n := min(len(dst), len(src))
	if !xcpu.X86.HasAVX2 || n < 2*block {
		return copy(dst, src)
	}
	dst, src = dst[:n], src[:n]
	at := -int(uintptr(unsafe.Pointer(&dst[0]))) & (align - 1)
	copy(dst[:at], src[:at])
	for n-at >= block {
		size := min((n-at)&^(block-1), maxChunk)
		avx2(&dst[at], &src[at], size)
		at += size
	}
	copy(dst[at:], src[at:])
	return n
}
