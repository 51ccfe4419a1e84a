package coordinator_test

import "runtime"

// wires are those that every system has, and shm on Linux: it needs memfds and abstract sockets,
// which no other system has.
func wires() []string {
	all := []string{"memory", "tcp", "grpc"}
	if runtime.GOOS == "linux" {
		all = append(all, "shm")
	}
	return all
}
