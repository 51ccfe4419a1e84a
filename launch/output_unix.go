//go:build unix

package launch

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// outputFiles holds the files that the ranks' output goes to. They are open while the ranks run.
// The goroutine in Run calls open and close.
type outputFiles struct {
	log   *lineWriter
	files map[string]*lineWriter // by path; nil for a file that has been closed

	mu     sync.Mutex // guards the fields below: copiers report errors
	err    error      // the first error of a write
	failed int        // how many files have had an error
}

// open opens a file, unless it is open. Only the first call for a path during a call of Run
// truncates the file. So a file that several ranks share keeps the lines of all of them, and a
// restart loses no lines.
func (o *outputFiles) open(path string) (*lineWriter, error) {
	w, again := o.files[path]
	if w != nil {
		return w, nil
	}
	f, err := openOutput(path, !again)
	if err != nil {
		return nil, &startError{exitNotRunning, "the file for its output: " + err.Error()}
	}
	w = &lineWriter{w: f, onFail: o.fail}
	if o.files == nil {
		o.files = make(map[string]*lineWriter)
	}
	o.files[path] = w
	return w, nil
}

// fail notes that a file could not be written.
func (o *outputFiles) fail(err error) {
	if errors.Is(err, os.ErrClosed) {
		return // a process that cannot be ended still writes after the end of the job
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failed++
	if o.err == nil {
		o.err = err
		o.log.logf("%v: from here on the file lacks the rank's lines, which are printed; the job goes on", err)
	}
}

// close closes the files. It returns an error if a file lacks lines because a write has failed in
// any start of the job.
func (o *outputFiles) close() error {
	for path, w := range o.files {
		if w == nil {
			continue
		}
		if err := w.w.(io.Closer).Close(); err != nil {
			o.fail(err)
		}
		o.files[path] = nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch o.failed {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("a file of the ranks' output lacks lines: %w", o.err)
	}
	return fmt.Errorf("%d files of the ranks' output lack lines: %w", o.failed, o.err)
}

// openOutput opens a file for appending. It creates the file and its directories if they do not
// exist. It does not follow a symbolic link at the end of the path: in a directory such as /tmp,
// another user may have made the link to have a file of this user overwritten. It does not block on
// a FIFO without a reader.
func openOutput(path string, truncate bool) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return nil, err
	}
	flags := os.O_WRONLY | os.O_CREATE | os.O_APPEND | unix.O_NOFOLLOW | unix.O_NONBLOCK
	if truncate {
		flags |= os.O_TRUNC
	}
	f, err := os.OpenFile(path, flags, 0o666)
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("got the symbolic link %s, want a file: remove the link, which another user may have made", path)
	}
	return f, err
}

// newCopier returns a copier for descriptor fd, 1 or 2, of a rank. The caller sets its src.
func (r *run) newCopier(k *rank, fd int) (*lineCopier, error) {
	o := &r.job.Output
	c := &lineCopier{prefix: o.Prefix, dst: r.out, fileOnly: o.FilesOnly, from: origin{
		rank: k.label(), slot: k.slot, size: r.info.size, host: cmp.Or(k.host.name(), r.hostName), stream: "stdout",
		incarnation: r.info.incarnation,
	}}
	file := o.Stdout
	if fd == 2 {
		c.dst, c.from.stream, file = r.err, "stderr", o.Stderr
	}
	// The verdict quotes each rank's last error, which is in its standard error.
	if fd == 2 || o.Merge {
		c.last = k.lastError
	}
	if file == "" {
		return c, nil
	}
	var err error
	c.file, err = r.outputFiles.open(c.from.expand(file))
	return c, err
}

// newLineWriter returns a writer for one stream of the launcher. It uses colours on a terminal,
// unless NO_COLOR is set (see no-color.org).
func newLineWriter(j *Job, w io.Writer) *lineWriter {
	env := j.environ()
	kind, _ := lookup(env, "TERM")
	plain, _ := lookup(env, "NO_COLOR")
	terminal := isTerminal(w) && kind != "dumb"
	return &lineWriter{w: w, terminal: terminal, colors: terminal && plain == ""}
}

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) (yes bool) {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return false
	}
	conn.Control(func(fd uintptr) {
		_, err := unix.IoctlGetWinsize(int(fd), unix.TIOCGWINSZ) // only a terminal has a size
		yes = err == nil
	})
	return yes
}
