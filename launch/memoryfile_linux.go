package launch

import (
	"os"

	"golang.org/x/sys/unix"
)

// memoryFile returns a file that lies in memory only. The file system does not have the name.
func memoryFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate("tutti "+name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
