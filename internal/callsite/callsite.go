// Package callsite records where a program called this module, and finds out where one of its
// goroutines is now. A location is the first frame outside this module, so that errors and warnings
// name a line of the program, and never a line of the library.
//
// Every call of the library records its location, so recording costs only some nanoseconds and
// allocates nothing. It keeps program counters, and turns them into text only when an error or a
// heartbeat needs the text.
package callsite

import (
	"bytes"
	"fmt"
	"path"
	"reflect"
	"runtime"
	"strconv"
	"strings"
)

// module is the prefix of the functions of this library. Its examples and commands count as
// programs.
const module = "github.com/tutti-go/tutti/"

// depth is the number of frames that are kept, enough to reach a frame outside this library. The
// assembly uses the same number.
const depth = 10

// A Site is a location in a program. It holds program counters, which String turns into text. The
// zero Site is no location. A Site is a value.
type Site struct {
	pcs [depth]uintptr
	n   int
}

// Here returns the location where the program has called this library. It must not be inlined,
// because it needs its own stack frame.
//
//go:noinline
func Here() (s Site) {
	s.Capture()
	return s
}

// Capture sets s to the location that Here returns. It needs no copy of a Site.
//
//go:noinline
func (s *Site) Capture() { s.n = framePCs(&s.pcs) }

// String returns "file.go:12" of the first frame outside this library, or "".
func (s Site) String() string {
	if s.n == 0 {
		return ""
	}
	frames := runtime.CallersFrames(s.pcs[:s.n])
	for {
		f, more := frames.Next()
		if f.File != "" && !inLibrary(f.Function, f.File) {
			return fmt.Sprintf("%s:%d", path.Base(f.File), f.Line)
		}
		if !more {
			return ""
		}
	}
}

// textCacheSize is how many Sites a TextCache holds.
const textCacheSize = 64

// A TextCache caches the texts of Sites, because making a text takes microseconds and allocates. A
// program calls from few locations, so a small cache is enough. The zero TextCache is empty. Only
// one goroutine at a time may use it.
type TextCache struct{ texts map[Site]string }

// Text returns s.String(), from the cache if possible.
func (b *TextCache) Text(s *Site) string {
	key := *s
	clear(key.pcs[key.n:]) // an earlier, deeper location may have left program counters there
	text, known := b.texts[key]
	if known {
		return text
	}
	if b.texts == nil || len(b.texts) >= textCacheSize {
		b.texts = make(map[Site]string, textCacheSize)
	}
	text = s.String()
	b.texts[key] = text
	return text
}

// inLibrary reports whether a function belongs to this library or to the runtime.
func inLibrary(function, file string) bool {
	if strings.HasPrefix(function, "runtime.") || strings.HasPrefix(function, "testing/synctest.") {
		return true
	}
	rest, ok := strings.CutPrefix(function, module)
	if !ok || strings.HasSuffix(file, "_test.go") {
		return false
	}
	return !strings.HasPrefix(rest, "examples/") && !strings.HasPrefix(rest, "cmd/")
}

// Goroutine returns the number of the calling goroutine. It costs about a microsecond, so it is
// called once per job and not per call.
func Goroutine() uint64 {
	var buf [64]byte
	line := buf[:runtime.Stack(buf[:], false)]
	line = bytes.TrimPrefix(line, []byte("goroutine "))
	n, _, _ := bytes.Cut(line, []byte(" "))
	id, _ := strconv.ParseUint(string(n), 10, 64)
	return id
}

// maxStacks bounds the memory that CurrentLine uses in a program with many goroutines.
const maxStacks = 1 << 20

// CurrentLine returns "file.go:12" of the first frame outside this library on a goroutine's stack,
// or "" if the goroutine has ended. It stops the world for a moment.
func CurrentLine(goroutine uint64) string {
	buf := make([]byte, 64<<10)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) || len(buf) >= maxStacks {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 4*len(buf))
	}
	start := []byte("goroutine " + strconv.FormatUint(goroutine, 10) + " ")
	for stack := range bytes.SplitSeq(buf, []byte("\n\n")) {
		if bytes.HasPrefix(stack, start) {
			return firstOutside(strings.Split(string(stack), "\n"))
		}
	}
	return ""
}

// firstOutside returns the first location outside this library in a printed stack. Each frame is a
// pair of lines: the function with its arguments, and an indented file:line.
func firstOutside(lines []string) string {
	for i := 1; i+1 < len(lines); i += 2 {
		location := strings.TrimSpace(lines[i+1])
		location, _, _ = strings.Cut(location, " ")
		file, line, ok := cutLast(location, ":")
		function := strings.TrimPrefix(lines[i], "created by ")
		if !ok || inLibrary(function, file) || inStandardLibrary(file) {
			continue
		}
		return path.Base(file) + ":" + line
	}
	return ""
}

// inStandardLibrary reports whether a file belongs to Go. Such frames are skipped: the location of
// a rank that sleeps is the line that called Sleep.
func inStandardLibrary(file string) bool {
	home, known := standardLibraryDir()
	// In a program built with -trimpath, the paths of Go's own files have no domain.
	if !known || home == "" {
		first, _, _ := strings.Cut(file, "/")
		return !strings.Contains(first, ".") && !path.IsAbs(file)
	}
	return strings.HasPrefix(file, home)
}

// standardLibraryDir returns the folder of the standard library when this program was built.
func standardLibraryDir() (string, bool) {
	f := runtime.FuncForPC(reflect.ValueOf(strings.Cut).Pointer())
	if f == nil {
		return "", false
	}
	file, _ := f.FileLine(f.Entry())
	return strings.CutSuffix(file, "strings/strings.go")
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}
