package coordinator_test

import "runtime"

// wires are those that every system has, and Linux's shm: it stands on memfds and
// abstract sockets, which no other system has.
func wires() []string {
	all := []string{"memory", "tcp", "grpc"}
	if runtime.GOOS == "linux" {
		all = append(all, "shm")
	}
	return all
}
