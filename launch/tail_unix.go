//go:build unix

package launch

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// tailLimit bounds what a tail returns after finish: no pipe holds more.
const tailLimit = 1 << 20

// A tail is the read end of a pipe. After finish it returns what the pipe holds, and then io.EOF,
// although a process still holds the write end. How fast the reader is makes no difference.
type tail struct {
	*os.File
	finished atomic.Bool
	read     int // how much it has returned since finish
}

// finish ends a Read that waits.
func (t *tail) finish() {
	t.finished.Store(true)
	t.SetReadDeadline(time.Unix(1, 0))
}

// Read implements io.Reader. Only one goroutine calls it.
func (t *tail) Read(b []byte) (int, error) {
	if !t.finished.Load() {
		if n, err := t.File.Read(b); !errors.Is(err, os.ErrDeadlineExceeded) || !t.finished.Load() {
			return n, err
		}
	}
	if t.read >= tailLimit {
		return 0, io.EOF
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return 0, err
	}
	n := 0
	// Control does not mind the deadline, which finish may be about to set.
	controlErr := raw.Control(func(fd uintptr) { n, err = syscall.Read(int(fd), b) })
	if err = errors.Join(err, controlErr); n <= 0 || err != nil {
		return 0, io.EOF
	}
	t.read += n
	return n, nil
}

// WriteTo implements io.WriterTo, which io.Copy prefers to Read. It hides the WriteTo of os.File,
// which would not call Read.
func (t *tail) WriteTo(w io.Writer) (int64, error) { return io.Copy(w, struct{ io.Reader }{t}) }

// farLimit is how many intervals of farInterval drain waits for bytes, or the end, of a stream of
// another host. That host ends its streams killAfter after the end of the last process.
const (
	farLimit    = 60
	farInterval = time.Second
)

// A farTail is the output of a process on another host. How fast its reader is makes no difference to
// isStuck.
type farTail struct {
	net.Conn
	host  *remoteHost
	ended func() bool  // reports whether the connection to the host has ended
	cut   atomic.Bool  // the stream has ended with the connection; set before Read returns io.EOF
	quiet atomic.Int32 // how many calls of isStuck the Read in progress has outlasted; noRead if none is
}

// noRead is far below the number of calls of isStuck.
const noRead = -1 << 30

// Read implements io.Reader. Only one goroutine calls it.
func (t *farTail) Read(b []byte) (int, error) {
	t.quiet.Store(0)
	defer t.quiet.Store(noRead)
	n, err := t.Conn.Read(b)
	if err == io.EOF && t.ended() {
		t.cut.Store(true)
	}
	return n, err
}

// isStuck reports, once for each Read, that the Read has outlasted farLimit calls of isStuck. Counting
// calls excludes the time in which this process is stopped.
func (t *farTail) isStuck() bool { return t.quiet.Add(1) == farLimit }
