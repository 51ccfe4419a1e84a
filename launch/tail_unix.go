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

// tailLimit bounds the bytes that a tail returns after finish. No pipe holds more.
const tailLimit = 1 << 20

// A tail is the read end of a pipe. After finish it returns what the pipe holds, and then io.EOF,
// even if a process still holds the write end. It returns all of these bytes however slowly they
// are read.
type tail struct {
	*os.File
	finished atomic.Bool
	read     int // the number of bytes returned since finish
}

// finish unblocks a Read.
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
	// Control ignores the deadline, which finish may set meanwhile.
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

// drain gives up a stream of another host after farLimit intervals without bytes. That host ends
// its streams killAfter after the end of the last process.
const (
	farLimit    = 60
	farInterval = time.Second
)

// A farTail is the output of a process on another host. For giveUp, only the time within Read
// counts, so the reader may be slow.
type farTail struct {
	net.Conn
	host  *remoteHost
	ended func() bool  // reports whether the connection to the host has ended
	cut   atomic.Bool  // the stream has ended with the connection; set before Read returns io.EOF
	quiet atomic.Int32 // how many calls of giveUp the current Read has outlasted; see noRead
}

// noRead is the value of quiet between two Reads. Calls of giveUp increment it, but too rarely to
// reach farLimit.
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

// giveUp closes the stream when a Read has outlasted farLimit calls of giveUp, and reports whether
// it has done so. It counts calls instead of time, to exclude the time in which this process is
// stopped.
func (t *farTail) giveUp() bool {
	stuck := t.quiet.Add(1) == farLimit
	if stuck {
		t.Close()
	}
	return stuck
}

// isCut reports whether the stream has ended with the connection, and the loss of the host has not
// been reported. The job's goroutine calls it.
func (t *farTail) isCut() bool { return t.cut.Load() && t.host.lost == nil }
