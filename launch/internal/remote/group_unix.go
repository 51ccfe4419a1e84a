//go:build unix

package remote

import (
	"errors"
	"io"
	"os"
	"syscall"
)

// ownGroup gives a child a process group of its own.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// killGroup kills a child that has not been waited for, and its process group.
func killGroup(p *os.Process) {
	if p.Signal(syscall.Signal(0)) == nil { // the process still has its number
		syscall.Kill(-p.Pid, syscall.SIGKILL)
	}
}

// Stdio returns this process's standard input and output as a connection, for Serve. Its Close
// unblocks a Read. A Write to a closed pipe returns an error, and does not kill the process by
// SIGPIPE.
func Stdio() (io.ReadWriteCloser, error) {
	var files [2]*os.File
	for i, name := range []string{"standard input", "standard output"} {
		fd, err := syscall.Dup(i)
		if err != nil {
			return nil, os.NewSyscallError("dup", err)
		}
		syscall.CloseOnExec(fd)
		if err := syscall.SetNonblock(fd, true); err != nil {
			return nil, os.NewSyscallError("fcntl", err)
		}
		files[i] = os.NewFile(uintptr(fd), name)
	}
	return duplex{files[0], files[1]}, nil
}

// A duplex is the connection of two pipes.
type duplex struct{ in, out *os.File }

func (d duplex) Read(b []byte) (int, error)  { return d.in.Read(b) }
func (d duplex) Write(b []byte) (int, error) { return d.out.Write(b) }
func (d duplex) Close() error                { return errors.Join(d.in.Close(), d.out.Close()) }
