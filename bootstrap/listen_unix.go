//go:build unix

package bootstrap

import (
	"fmt"
	"net"
	"os"
	"syscall"
)

// adoptFD makes an inherited descriptor this process's listener. It closes the descriptor. The copy
// in the listener has close-on-exec set, so that this rank's children do not keep the port in use.
// The variable may have reached a child of rank 0, in which the number is another file's. So
// adoptFD does not touch a descriptor that does not listen on want.
func adoptFD(fd int, want string) (net.Listener, error) {
	if n, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_ACCEPTCONN); err != nil || n == 0 {
		return nil, fmt.Errorf("descriptor %d is no listener", fd)
	}
	sa, err := syscall.Getsockname(fd)
	if err != nil {
		return nil, err
	}
	if got := sockPort(sa); got == 0 || got != portOf(want) {
		return nil, fmt.Errorf("descriptor %d listens on port %d, not on %s", fd, got, want)
	}
	syscall.CloseOnExec(fd)
	file := os.NewFile(uintptr(fd), "listener")
	defer file.Close()
	return net.FileListener(file)
}

// sockPort returns the port of an IP socket address, or 0 for another kind of address.
func sockPort(sa syscall.Sockaddr) int {
	switch a := sa.(type) {
	case *syscall.SockaddrInet4:
		return a.Port
	case *syscall.SockaddrInet6:
		return a.Port
	}
	return 0
}

// portOf returns the port of host:port, or -1.
func portOf(addr string) int {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return -1
	}
	n, err := net.LookupPort("tcp", port)
	if err != nil {
		return -1
	}
	return n
}
