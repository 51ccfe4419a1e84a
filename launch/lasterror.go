package launch

import (
	"bytes"
	"strconv"
	"strings"
	"sync"

	"github.com/tutti-go/tutti/fault"
)

// maxQuoteLine is the maximum number of bytes of a line that a verdict quotes.
const maxQuoteLine = 1 << 10

// A lastError reads a rank's standard error and keeps the line that most likely says why the rank
// ended. The candidates, best first:
//
//  1. the last line with an error of this module: "allreduce: rank 0: peer lost [rank 2]"
//  2. the first line of the last panic: "panic: runtime error: index out of range"
//  3. the last line that is not blank
//
// The lines of a stack trace are of the third kind. Each kind is kept separately, so a stack trace
// of any length does not replace the error or panic before it. Memory is bounded: four lines of at
// most maxQuoteLine bytes.
type lastError struct {
	mu    sync.Mutex // guards the fields below: children of the rank may print while the verdict is written
	line  []byte     // the current line, cut at maxQuoteLine
	fault string
	kind  fault.Kind // the kind of fault
	panic string
	last  string
}

// write reads the next bytes of the stream.
func (e *lastError) write(b []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for len(b) > 0 {
		// Bytes of a line beyond the bound are dropped, and the beginning of the line is kept.
		part, rest, ended := bytes.Cut(b, []byte("\n"))
		e.line = append(e.line, part[:min(len(part), maxQuoteLine-len(e.line))]...)
		if ended {
			e.addLine(strings.TrimSpace(string(e.line)))
			e.line = e.line[:0]
		}
		b = rest
	}
}

// addLine stores one complete line as fault, panic or last, according to its kind.
func (e *lastError) addLine(line string) {
	switch kind := faultIn(line); {
	case line == "":
	case kind != 0:
		e.fault, e.kind = line, kind
	case strings.HasPrefix(line, "panic: "), strings.HasPrefix(line, "fatal error: "):
		e.panic = line
	default:
		e.last = line
	}
}

// quote returns the line to quote, or "" if there is none. If the line is an error of this module,
// kind is the kind of that error; otherwise it is 0.
func (e *lastError) quote() (line string, kind fault.Kind) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.line) > 0 { // a last line without its newline
		e.addLine(strings.TrimSpace(string(e.line)))
		e.line = e.line[:0]
	}
	switch {
	case e.fault != "":
		return e.fault, e.kind
	case e.panic != "":
		return e.panic, 0
	}
	return e.last, 0
}

// panicked reports whether the rank has printed a panic of Go.
func (e *lastError) panicked() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.panic != ""
}

// faultIn finds an error of this module in a line by its form, "op: rank 3: kind ...". It returns
// the error's kind, or 0 if the line has no such error.
func faultIn(line string) fault.Kind {
	const mark = ": rank "
	for {
		_, rest, ok := strings.Cut(line, mark)
		if !ok {
			return 0
		}
		number, text, _ := strings.Cut(rest, ": ")
		// The text before the error may itself contain ": rank ", so each occurrence is tried.
		if _, err := strconv.Atoi(number); err == nil {
			for k := fault.Kind(1); k.Valid(); k++ {
				if strings.HasPrefix(text, k.Error()) {
					return k
				}
			}
		}
		line = rest
	}
}
