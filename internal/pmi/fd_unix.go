//go:build unix

package pmi

import (
	"net"
	"os"
	"syscall"
)

// isInherited reports whether a descriptor is a connected stream socket that this process has
// inherited. A descriptor with close-on-exec was opened by this process, and not inherited.
func isInherited(fd int) bool {
	flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFD, 0)
	if errno != 0 || flags&syscall.FD_CLOEXEC != 0 {
		return false
	}
	kind, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_TYPE)
	if err != nil || kind != syscall.SOCK_STREAM {
		return false
	}
	_, err = syscall.Getpeername(fd)
	return err == nil
}

// adopt makes an inherited socket a connection of this process. It closes the descriptor itself.
// The copy in the connection has close-on-exec set.
func adopt(fd int) (net.Conn, error) {
	syscall.CloseOnExec(fd)
	file := os.NewFile(uintptr(fd), varFD)
	defer file.Close()
	return net.FileConn(file)
}
