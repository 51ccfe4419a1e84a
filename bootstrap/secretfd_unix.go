//go:build unix

package bootstrap

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// pipeTimeout is how long readFD waits for the bytes of a pipe. The launcher writes them and closes
// its end before it starts the rank. So a longer wait means that the descriptor is another pipe.
const pipeTimeout = 2 * time.Second

// readFD returns at most the given number of bytes of a descriptor, and leaves the descriptor open.
// Programs that a script starts one after another share the position of an inherited file. So
// readFD reads a file from its start without moving the position. It reads a pipe to its end,
// within pipeTimeout. It refuses anything else, such as a socket or a terminal, because the
// variable may have reached a process in which the number belongs to another file.
func readFD(fd, most int) ([]byte, error) {
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return nil, err
	}
	switch st.Mode & syscall.S_IFMT {
	case syscall.S_IFREG:
		return readAll(most, func(b []byte, at int64) (int, error) { return syscall.Pread(fd, b, at) })
	case syscall.S_IFIFO:
		deadline := time.Now().Add(pipeTimeout)
		return readAll(most, func(b []byte, _ int64) (int, error) {
			poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			left := max(0, time.Until(deadline))
			if n, err := unix.Poll(poll, int(left.Milliseconds())); err != nil || n == 0 {
				return 0, cmp.Or(err, os.ErrDeadlineExceeded)
			}
			return syscall.Read(fd, b)
		})
	}
	return nil, errors.New("it is neither a file nor a pipe")
}

// readAll reads to the end, and fails if there are more bytes than the parameter most. The function
// read fills a buffer from an offset.
func readAll(most int, read func(b []byte, at int64) (int, error)) ([]byte, error) {
	text := make([]byte, most)
	n := 0
	for n < most {
		k, err := read(text[n:], int64(n))
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			return nil, err
		case k == 0:
			return text[:n], nil
		}
		n += k
	}
	return nil, fmt.Errorf("got more than %d bytes", len(text)-1)
}

// markRead moves the position of the descriptor's file, which the launcher shares. The moved
// position shows the launcher that a program of this rank has called Init. A pipe has no position.
func markRead(fd int) { syscall.Seek(fd, 1, 0) }

// closeFD closes a descriptor.
func closeFD(fd int) { syscall.Close(fd) }
