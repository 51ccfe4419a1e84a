//go:build unix

package bootstrap

import (
	"errors"
	"fmt"
	"syscall"
)

// readFD returns the content of a descriptor, and leaves the descriptor open. The parameter most is
// the largest number of bytes. readFD reads a file from its start without moving its position,
// because ranks that a script starts one after another share the position. It reads a pipe to its
// end.
func readFD(fd, most int) ([]byte, error) {
	text := make([]byte, most)
	n := 0
	for n < most {
		k, err := syscall.Pread(fd, text[n:], int64(n))
		if errors.Is(err, syscall.ESPIPE) {
			k, err = syscall.Read(fd, text[n:])
		}
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

// markRead moves the position of the descriptor's file. The launcher shares the position. When it
// sees that the position has moved, it knows that a program of this rank has called Init. A pipe
// has no position.
func markRead(fd int) { syscall.Seek(fd, 1, 0) }

// closeFD closes a descriptor.
func closeFD(fd int) { syscall.Close(fd) }
