package launch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// maxLine is how many bytes of an incomplete line are buffered. A longer line is written in parts
// of this size.
const maxLine = 64 << 10

// partialWait is the time after which an incomplete untagged line is written, so that users see
// prompts and progress bars.
const partialWait = 50 * time.Millisecond

// An Output says how Run writes what the ranks print. The zero value writes it unchanged.
type Output struct {
	// Prefix begins each line; "" means no prefix. Lines with a prefix are written as a whole.
	// Prefix, Stdout and Stderr are patterns with these codes:
	//
	//	%r  the rank                           %h  the name of the rank's host
	//	%s  stdout or stderr                   %t  the time, as in "Sat Nov 21 09:38:49 2026"
	//	%g  0, and 1 more with each restart    %j  %g plus 1
	//	%R  the rank with as many digits as    %%  a percent sign
	//	    the number of ranks
	Prefix string

	// Merge makes a rank's standard error the same file as its standard output.
	Merge bool

	// Stdout and Stderr are the names of files that get the lines of these streams, with the prefix.
	// "" means no file. Several ranks may share a file.
	Stdout, Stderr string

	// FilesOnly says that a stream with a file is not printed, except for lines that could not be
	// written to the file.
	FilesOnly bool
}

// inheritsStdout reports whether ranks may write to the launcher's standard output themselves.
func (o *Output) inheritsStdout() bool { return o.Prefix == "" && o.Stdout == "" && !o.Merge }

// An origin says where a line of output comes from.
type origin struct {
	rank        string
	slot        int
	size        int // the number of ranks
	host        string
	stream      string // stdout or stderr
	incarnation int
}

// expand replaces the codes of a pattern. The pattern has passed checkPattern.
func (o *origin) expand(pattern string) string {
	if pattern == "" {
		return ""
	}
	var b strings.Builder
	for {
		text, rest, ok := strings.Cut(pattern, "%")
		b.WriteString(text)
		if !ok || rest == "" {
			return b.String()
		}
		switch rest[0] {
		case 'r':
			b.WriteString(o.rank)
		case 'R':
			number, _, _ := strings.Cut(o.rank, ".")
			b.WriteString(strings.Repeat("0", max(0, len(strconv.Itoa(o.size))-len(number))) + o.rank)
		case 'h':
			b.WriteString(o.host)
		case 's':
			b.WriteString(o.stream)
		case 't':
			b.WriteString(time.Now().Format(time.ANSIC))
		case 'g':
			b.WriteString(strconv.Itoa(o.incarnation))
		case 'j':
			b.WriteString(strconv.Itoa(o.incarnation + 1))
		case '%':
			b.WriteByte('%')
		}
		pattern = rest[1:]
	}
}

// checkPattern returns an error if a pattern has a code that expand does not know.
func checkPattern(pattern string) error {
	for {
		_, rest, ok := strings.Cut(pattern, "%")
		if !ok {
			return nil
		}
		if rest == "" || !strings.ContainsRune("rRhstgj%", rune(rest[0])) {
			return fmt.Errorf("got %q, want %%r (rank), %%h (host), %%s (stream), %%t (time), %%g (restarts) or %%%% after each %%", "%"+rest[:min(1, len(rest))])
		}
		pattern = rest[1:]
	}
}

// A lineWriter writes whole lines of many ranks, one write at a time.
type lineWriter struct {
	mu     sync.Mutex // held during a write
	w      io.Writer
	failed bool        // a write has failed, usually because the reader has closed its end
	onFail func(error) // is called with the first error; may be nil

	terminal bool // w is a terminal that understands escape codes
	colors   bool // prefixes have the colours of their ranks
	progress bool // the last line on the terminal was written by showProgress
}

// write writes the bytes and reports whether it succeeded. After a failure it writes nothing more.
func (s *lineWriter) write(b []byte) bool { return s.replace(b, false) }

// replace writes the bytes. If the last line is a line of showProgress, they replace it.
func (s *lineWriter) replace(b []byte, progress bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed {
		return false
	}
	if s.progress {
		b = append([]byte("\r\x1b[K"), b...) // erases the line
	}
	s.progress = progress
	if len(b) == 0 {
		return true
	}
	_, err := s.w.Write(b)
	s.failed = err != nil
	if s.failed && s.onFail != nil {
		s.onFail(err)
	}
	return !s.failed
}

// logf prints a line of the launcher itself.
func (s *lineWriter) logf(format string, args ...any) {
	s.write(fmt.Appendf(nil, "tuttirun: "+format+"\n", args...))
}

// showProgress shows on a terminal how many hosts of a job have started. The line is erased by the
// next line that is written, and by the call for the last host.
func (s *lineWriter) showProgress(started, total int) {
	switch {
	case !s.terminal:
	case started < total:
		s.replace(fmt.Appendf(nil, "tuttirun: %d of %d hosts have started", started, total), true)
	default:
		s.eraseProgress()
	}
}

// eraseProgress erases the line of showProgress, if there is one.
func (s *lineWriter) eraseProgress() { s.replace(nil, false) }

// colored returns a rank's prefix in the rank's colour, if colours are on.
func (s *lineWriter) colored(prefix string, slot int) string {
	if !s.colors || prefix == "" {
		return prefix
	}
	// The foreground colours that are legible on black and on white, first dark and then bright.
	codes := [...]int{36, 35, 32, 33, 34, 31, 96, 95, 92, 93, 94, 91}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", codes[slot%len(codes)], prefix)
}

// A source is what a lineCopier reads: a pipe, or a connection to another machine.
type source interface {
	io.ReadCloser
	SetReadDeadline(time.Time) error
}

// A lineCopier copies what one rank writes to a lineWriter. One goroutine runs it. Output of
// different ranks does not mix within a line, with two exceptions. A line longer than maxLine is
// written in parts, because buffering it would need unbounded memory. A line without a prefix that
// stays incomplete for partialWait is written at once, because it may be a prompt.
type lineCopier struct {
	src      source
	from     origin
	prefix   string // the pattern of what comes before each line; "" copies bytes unchanged
	dst      *lineWriter
	file     *lineWriter // gets the lines, too; nil if the stream has no file
	fileOnly bool        // dst gets only what could not be written to file
	last     *lastError

	buf []byte // the part of a line that has arrived; at most maxLine bytes
	out []byte // lines with their prefixes that have not been written yet
}

// run copies until all writers have closed their end of the pipe, and then closes the read end. If
// dst fails and there is no file, run also ends, so that a writer gets SIGPIPE as it would without
// a launcher. If last is not nil, run nevertheless reads the whole stream, because the verdict
// quotes the last error.
func (r *lineCopier) run() {
	defer r.src.Close()
	r.buf = make([]byte, 0, maxLine)
	for {
		// An unfinished line without a prefix is written after partialWait. A line with a prefix
		// waits for its end, because each prefix must be followed by a whole line.
		if r.prefix == "" && len(r.buf) > 0 {
			r.src.SetReadDeadline(time.Now().Add(partialWait))
		} else {
			r.src.SetReadDeadline(time.Time{})
		}
		n, err := r.src.Read(r.buf[len(r.buf):cap(r.buf)])
		// last gets the bytes even after dst has failed.
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
	ok := r.write(r.buf[:end])
	// The part of the next line that has arrived stays in the buffer.
	r.buf = r.buf[:copy(r.buf, r.buf[end:])]
	return ok
}

// write writes lines to the file and to dst, and reports whether at least one of the two writes has
// succeeded. With fileOnly it writes to dst only what it could not write to the file.
func (r *lineCopier) write(lines []byte) bool {
	prefix := r.from.expand(r.prefix)
	kept := r.file != nil && r.writeTo(r.file, prefix, lines)
	if kept && r.fileOnly {
		return true
	}
	return r.writeTo(r.dst, r.dst.colored(prefix, r.from.slot), lines) || kept
}

// writeTo writes lines, each with a prefix and a newline. Without a prefix, it writes the bytes as
// they are.
func (r *lineCopier) writeTo(w *lineWriter, prefix string, lines []byte) bool {
	if prefix == "" {
		return w.write(lines)
	}
	ok := true
	for line := range bytes.Lines(lines) {
		r.out = append(append(r.out, prefix...), bytes.TrimSuffix(line, []byte("\n"))...)
		r.out = append(r.out, '\n')
		if len(r.out) >= maxLine {
			ok = w.write(r.out)
			r.out = r.out[:0]
		}
	}
	if len(r.out) > 0 {
		ok = w.write(r.out)
		r.out = r.out[:0]
	}
	return ok
}
