package launch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// maxLine is the number of bytes up to which a line is buffered until it is complete. A longer
// line is written in parts of this size.
const maxLine = 64 << 10

// partialWait is the time after which an incomplete untagged line is written, so that users see
// prompts and progress bars.
const partialWait = 50 * time.Millisecond

// A lineWriter writes whole lines of many ranks, one write at a time.
type lineWriter struct {
	mu     sync.Mutex // one write at a time
	w      io.Writer
	failed bool // a write has failed, usually because the reader has closed its end
}

// write writes the bytes and reports whether it succeeded. After a failure it writes nothing.
func (s *lineWriter) write(b []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.failed {
		_, err := s.w.Write(b)
		s.failed = err != nil
	}
	return !s.failed
}

// logf prints a line of the launcher itself.
func (s *lineWriter) logf(format string, args ...any) {
	s.write(fmt.Appendf(nil, "tuttirun: "+format+"\n", args...))
}

// A source is what a lineCopier reads: a pipe, or a connection to another machine.
type source interface {
	io.ReadCloser
	SetReadDeadline(time.Time) error
}

// A lineCopier copies what one rank writes to a lineWriter. One goroutine runs it. Output of
// different ranks does not mix within a line, with two exceptions. A line longer than maxLine is
// written in parts, because buffering it would need unbounded memory. An untagged line that stays
// incomplete for partialWait is written at once, because it may be a prompt.
type lineCopier struct {
	src  source
	dst  *lineWriter
	tag  string // the text before each line; "" copies bytes unchanged
	last *lastError

	buf []byte // the part of a line that has arrived; at most maxLine bytes
	out []byte // tagged lines that have not been written yet
}

// run copies until all writers have closed their end of the pipe, and then closes the read end. It
// also ends if dst fails, so that a writer gets SIGPIPE, as it would without a launcher. If last is
// not nil, run reads the whole stream even if dst fails, because the verdict quotes the last error.
func (r *lineCopier) run() {
	defer r.src.Close()
	r.buf = make([]byte, 0, maxLine)
	for {
		// An unfinished line of untagged output is written after partialWait. A tagged line waits
		// for its end, because each tag must be followed by a whole line.
		if r.tag == "" && len(r.buf) > 0 {
			r.src.SetReadDeadline(time.Now().Add(partialWait))
		} else {
			r.src.SetReadDeadline(time.Time{})
		}
		n, err := r.src.Read(r.buf[len(r.buf):cap(r.buf)])
		// last gets the bytes even if nobody reads the output any more.
		if r.last != nil {
			r.last.write(r.buf[len(r.buf) : len(r.buf)+n])
		}
		r.buf = r.buf[:len(r.buf)+n]
		partial := errors.Is(err, os.ErrDeadlineExceeded)
		ok := r.flush(err != nil)
		if err != nil && !partial || !ok && r.last == nil {
			return
		}
	}
}

// flush writes the complete lines in buf, and reports whether it succeeded. It also writes an
// incomplete last line if the parameter all is true (at the end of the stream, or after
// partialWait), or if the line fills buf.
func (r *lineCopier) flush(all bool) bool {
	end := bytes.LastIndexByte(r.buf, '\n') + 1
	if all || end == 0 && len(r.buf) == cap(r.buf) {
		end = len(r.buf)
	}
	if end == 0 {
		return true
	}
	ok := true
	if r.tag == "" {
		ok = r.dst.write(r.buf[:end])
	} else {
		ok = r.writeTagged(r.buf[:end])
	}
	// The part of the next line that has arrived stays in the buffer.
	r.buf = r.buf[:copy(r.buf, r.buf[end:])]
	return ok
}

// writeTagged writes lines, each with its tag and a newline.
func (r *lineCopier) writeTagged(text []byte) bool {
	ok := true
	for line := range bytes.Lines(text) {
		r.out = append(append(r.out, r.tag...), bytes.TrimSuffix(line, []byte("\n"))...)
		r.out = append(r.out, '\n')
		if len(r.out) >= maxLine {
			ok = r.dst.write(r.out)
			r.out = r.out[:0]
		}
	}
	if len(r.out) > 0 {
		ok = r.dst.write(r.out)
		r.out = r.out[:0]
	}
	return ok
}

// tag returns what precedes each line of a rank.
func (t Tags) tag(rank, stream string) string {
	switch t {
	case RankTag:
		return fmt.Sprintf("[%s] ", rank)
	case MPITag:
		return fmt.Sprintf("[1,%s]<%s>:", rank, stream)
	}
	return ""
}
