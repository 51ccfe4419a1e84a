package launch

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// memoryFile returns a file that exists only in memory. Its name does not appear in the file
// system.
func memoryFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate("tutti "+name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// readOnly opens a memory file for reading only.
func readOnly(f *os.File) (*os.File, error) { return os.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd())) }
