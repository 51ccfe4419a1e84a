package launch

import (
	"os"

	"golang.org/x/sys/unix"
)

// memoryFile returns a file that has no name and lies in memory only.
func memoryFile() (*os.File, error) {
	fd, err := unix.MemfdCreate("tutti credentials", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), "credentials"), nil
}
