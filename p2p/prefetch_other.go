//go:build !amd64 && !arm64

package p2p

func fetchToWrite(*uint64) {}

func fetchToRead(*uint64) {}
