package coordinator_test

import "runtime"

// wires returns the wires that every system supports, and on Linux also shm. shm needs memfds and
// abstract sockets, which only Linux has.
func wires() []string {
	all := []string{"memory", "tcp", "grpc"}
	if runtime.GOOS == "linux" {
		all = append(all, "shm")
	}
	return all
}
