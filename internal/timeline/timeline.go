// Package timeline writes and merges timelines of the ranks of a job, as Chrome's trace events,
// which Perfetto and chrome://tracing show.
//
// Each rank writes its own part, and the launcher merges all parts into one file. A part is itself
// a trace file:
//
//	{"displayTimeUnit":"ms","otherData":{"ranks":[INFO]},
//	"traceEvents":[
//	EVENT,
//	EVENT
//	]}
//
// The first line, the start of the list and its end are separate lines, and each event is one line.
// Merging therefore copies lines without decoding them. Times are those of rank 0's clock, since 1970,
// in microseconds with three decimals. The caller of Span converts its own clock to rank 0's clock.
//
// A rank has up to two parts: its coordinator writes one, and package ps the other.
//
// A rank is a process of the trace, and a name (of a tensor, for example) is one of its threads.
// Spans of one thread must nest or follow one another; otherwise viewers draw them wrongly. Check
// verifies that the spans of a file do so.
//
// The format is Google's "Trace Event Format" (docs.google.com, document
// 1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU): complete events ("X"), and metadata ("M") that
// names processes and threads.
package timeline

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"strconv"
)

// PartName returns the file of a rank's part of a timeline, which its coordinator writes.
func PartName(file string, rank int) string { return file + ".rank" + strconv.Itoa(rank) }

// PSPartName returns the file of a rank's second part, which package ps writes.
func PSPartName(file string, rank int) string { return PartName(file, rank) + PSSuffix }

// PSSuffix ends the names of the parts of package ps.
const PSSuffix = ".ps"

// Numbers of the first thread of a part, for WritePart. A rank may have one part of each kind.
const (
	FirstThread   = 1
	FirstPSThread = 1 << 20
)

// CreateExclusive creates a file for writing and removes an earlier file of that name. It follows
// no link, so that a user who may write to the directory cannot make it overwrite another file.
func CreateExclusive(name string) (*os.File, error) {
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
}

// Info describes a rank's part. Viewers show it as the trace's metadata.
type Info struct {
	Rank    int    `json:"rank"`
	Host    string `json:"host"`
	Offset  int64  `json:"clock_offset_ns"` // the offset of rank 0's clock from this rank's clock
	Error   int64  `json:"clock_error_ns"`  // bound of the error of Offset: half a round trip
	Dropped uint64 `json:"dropped"`         // tensors or requests that did not fit into the recorder
}

// An Arg is a detail of a span: a number, or a text if Text is not "".
type Arg struct {
	Name  string
	Value int
	Text  string
}

// A Writer writes one part. Only one goroutine may use it. After the first error, calls do nothing,
// and Close returns that error. The Writer keeps a number for each name, so its memory grows with
// the number of names, and not with the number of events.
type Writer struct {
	w           *bufio.Writer
	rank        int
	threads     map[string]int // the thread number of each name
	firstThread int
	line        []byte
	hasEvents   bool // an event has been written, so the next one needs a comma
	err         error
}

// NewWriter begins a part.
func NewWriter(w io.Writer, about Info) *Writer {
	t := &Writer{w: bufio.NewWriter(w), rank: about.Rank, threads: make(map[string]int), firstThread: FirstThread}
	head, err := json.Marshal(about)
	t.err = err
	t.write([]byte(`{"displayTimeUnit":"ms","otherData":{"ranks":[` + string(head) + "]},\n" + listHead + "\n"))
	t.meta("process_name", 0, "name", strconv.Quote(fmt.Sprintf("rank %d", about.Rank)))
	t.meta("process_sort_index", 0, "sort_index", strconv.Itoa(about.Rank))
	return t
}

// The lines at which the list of events begins and ends.
const (
	listHead = `"traceEvents":[`
	listTail = `]}`
)

// write writes b, unless there was an error before.
func (t *Writer) write(b []byte) {
	if t.err == nil {
		_, t.err = t.w.Write(b)
	}
}

// event writes t.line as the next event. The comma between two events is written before the second
// one, because JSON allows no comma after the last.
func (t *Writer) event() {
	if t.hasEvents {
		t.write([]byte(",\n"))
	}
	t.hasEvents = true
	t.write(t.line)
}

// meta writes a metadata event about a thread; thread 0 stands for the process.
func (t *Writer) meta(what string, thread int, key, value string) {
	t.line = fmt.Appendf(t.line[:0], `{"name":%q,"ph":"M","pid":%d,"tid":%d,"args":{%q:%s}}`, what, t.rank, thread, key, value)
	t.event()
}

// thread returns the thread number of a name. At the first use of the name it writes the name to
// the trace. Number 0 stands for the process.
func (t *Writer) thread(name string) int {
	id, known := t.threads[name]
	if !known {
		id = t.firstThread + len(t.threads)
		t.threads[name] = id
		quoted, err := json.Marshal(name)
		if err != nil && t.err == nil {
			t.err = err
		}
		t.meta("thread_name", id, "name", string(quoted))
		t.meta("thread_sort_index", id, "sort_index", strconv.Itoa(id))
	}
	return id
}

// Span writes that an activity took place on the thread of a name, from begin to end, in
// nanoseconds of rank 0's clock. A span that ends before it begins is written with length 0,
// because differences between clocks can cause such spans.
func (t *Writer) Span(on, what string, begin, end int64, args ...Arg) {
	id := t.thread(on)
	quoted, err := json.Marshal(what)
	if err != nil && t.err == nil {
		t.err = err
	}
	b := append(append(t.line[:0], `{"name":`...), quoted...)
	b = fmt.Appendf(b, `,"cat":"tutti","ph":"X","pid":%d,"tid":%d,"ts":`, t.rank, id)
	b = appendMicros(b, begin)
	b = append(b, `,"dur":`...)
	b = appendMicros(b, max(0, end-begin))
	if len(args) > 0 {
		b = append(b, `,"args":{`...)
		for i, a := range args {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(strconv.AppendQuote(b, a.Name), ':')
			if a.Text == "" {
				b = strconv.AppendInt(b, int64(a.Value), 10)
				continue
			}
			text, _ := json.Marshal(a.Text) // cannot fail for a string
			b = append(b, text...)
		}
		b = append(b, '}')
	}
	t.line = append(b, '}')
	t.event()
}

// appendMicros writes nanoseconds as the microseconds of the format, exactly: a float would lose
// digits. A negative time is written as 0.
func appendMicros(b []byte, ns int64) []byte {
	ns = min(max(ns, 0), math.MaxInt64)
	b = strconv.AppendInt(b, ns/1000, 10)
	return fmt.Appendf(b, ".%03d", ns%1000)
}

// Close ends the part, and returns the first error of all calls.
func (t *Writer) Close() error {
	t.write([]byte("\n" + listTail + "\n"))
	if t.err == nil {
		t.err = t.w.Flush()
	}
	return t.err
}
