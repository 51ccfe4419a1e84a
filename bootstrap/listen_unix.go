//go:build unix

package bootstrap

import (
	"fmt"
	"net"
	"os"
	"syscall"
)

// adoptFD makes an inherited descriptor this process's listener. The descriptor
// itself is closed: its copy inside the listener has close-on-exec set, so that
// this rank's children do not hold the port. A descriptor that is no listener
// on want is somebody else's and left alone.
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

func sockPort(sa syscall.Sockaddr) int {
	switch a := sa.(type) {
	case *syscall.SockaddrInet4:
		return a.Port
	case *syscall.SockaddrInet6:
		return a.Port
	}
	return 0
}

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
