//go:build unix

package launch

import (
	"io"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// foregroundPoll is the interval, in milliseconds, at which a launcher in the background checks
// whether it is in the foreground again.
const foregroundPoll = 200

// isControllingTerminal reports whether job control applies to f. If it does, a read by a process
// outside the foreground process group stops that process.
func isControllingTerminal(f *os.File) bool {
	_, err := foreground(f)
	return err == nil
}

// foreground returns the process group that may read the terminal.
func foreground(f *os.File) (pgid int, err error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	if e := conn.Control(func(fd uintptr) { pgid, err = unix.IoctlGetInt(int(fd), unix.TIOCGPGRP) }); e != nil {
		return 0, e
	}
	return pgid, err
}

// An inputCopier copies the launcher's standard input to rank 0 if rank 0 cannot inherit it: if the
// input is a terminal, or if rank 0 is on another host. Rank 0 has its own process group, and only
// the foreground process group may read a terminal. The copier reads a terminal only while the
// launcher is in the foreground. So input that the user types while the launcher is in the
// background goes to the shell. The copier never blocks in a read, so that it can be stopped.
type inputCopier struct {
	stopper *os.File // closing it unblocks the wait for input
	to      stream   // closing it unblocks a write to rank 0
	done    sync.WaitGroup
}

// newInputCopier starts a copier from the file in to a stream. The copier closes the stream
// when it ends.
func newInputCopier(in *os.File, to stream) (*inputCopier, error) {
	stopped, quit, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	f := &inputCopier{stopper: quit, to: to}
	f.done.Go(func() {
		defer stopped.Close()
		defer to.Close()
		copyInput(in, to, stopped)
	})
	return f, nil
}

// stop ends the copying, even while the copier waits for input or for rank 0. It returns when the
// copier has ended.
func (f *inputCopier) stop() {
	f.stopper.Close()
	f.to.Close()
	f.done.Wait()
}

// copyInput copies until the end of the input, until rank 0 has closed its end, or until stopped is
// readable.
func copyInput(in *os.File, to io.Writer, stopped *os.File) {
	buf, terminal := make([]byte, 4096), isControllingTerminal(in)
	for {
		fds := []unix.PollFd{
			{Fd: int32(stopped.Fd()), Events: unix.POLLIN},
			{Fd: int32(in.Fd()), Events: unix.POLLIN},
		}
		timeout := -1
		// In the background, a read would stop the launcher by SIGTTIN. The copier then waits only for
		// stopped, and checks again later.
		if pgid, err := foreground(in); terminal && (err != nil || pgid != syscall.Getpgrp()) {
			fds, timeout = fds[:1], foregroundPoll
		}
		if _, err := unix.Poll(fds, timeout); err != nil && err != unix.EINTR {
			return
		}
		if fds[0].Revents != 0 {
			return
		}
		if len(fds) == 1 || fds[1].Revents == 0 {
			continue
		}
		n, err := in.Read(buf)
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil || n == 0 {
			return
		}
	}
}
