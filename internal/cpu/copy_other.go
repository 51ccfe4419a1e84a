//go:build !amd64

package cpu

func copyStreaming(dst, src []byte) int { return copy(dst, src) }
