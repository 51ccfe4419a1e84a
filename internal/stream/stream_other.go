//go:build !amd64

package stream

func copyNonTemporal(dst, src []byte) int { return copy(dst, src) }
