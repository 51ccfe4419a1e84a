//go:build unix

package bootstrap

import (
	"net"
	"os"
	"syscall"
)

// adoptConn makes an inherited Unix socket a connection of this process. It closes the descriptor.
// The copy in the connection has close-on-exec set. The variable may have reached a child of a
// rank, in which the number is another file's. So adoptConn does not touch any other kind of
// descriptor.
func adoptConn(fd int) (net.Conn, error) {
	sa, err := syscall.Getsockname(fd)
	if err != nil {
		return nil, err
	}
	if _, ok := sa.(*syscall.SockaddrUnix); !ok {
		return nil, syscall.ENOTSOCK
	}
	syscall.CloseOnExec(fd)
	file := os.NewFile(uintptr(fd), "store")
	defer file.Close()
	return net.FileConn(file)
}
