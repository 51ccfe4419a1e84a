package timeline

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// maxLine is the maximum length of a line, in bytes. Names have a few hundred bytes at most.
const maxLine = 1 << 20

// Merge merges the timelines in parts into one and writes it to w. It holds only one line per part
// in memory, because a timeline may be larger than the memory. If a part is not a timeline or is
// cut off, Merge returns an error that names the part. The output is then incomplete and useless.
func Merge(w io.Writer, parts ...io.Reader) error {
	out := bufio.NewWriter(w)
	var about []json.RawMessage
	var readers []*bufio.Scanner
	// All first lines are read before anything is written, because the first line of the output
	// lists the ranks of all parts.
	for i, p := range parts {
		sc := bufio.NewScanner(p)
		sc.Buffer(make([]byte, 0, 64<<10), maxLine)
		ranks, err := readHead(sc)
		if err != nil {
			return fmt.Errorf("part %d: %w", i, err)
		}
		about = append(about, ranks...)
		readers = append(readers, sc)
	}
	head, err := json.Marshal(map[string]any{"ranks": about})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "{\"displayTimeUnit\":\"ms\",\"otherData\":%s,\n%s\n", head, listHead)
	hasEvents := false
	for i, sc := range readers {
		if err := copyEvents(out, sc, &hasEvents); err != nil {
			return fmt.Errorf("part %d: %w", i, err)
		}
	}
	fmt.Fprintf(out, "\n%s\n", listTail)
	return out.Flush()
}

// readHead reads a part up to its list of events, and returns the description of its ranks.
func readHead(sc *bufio.Scanner) ([]json.RawMessage, error) {
	var head struct {
		OtherData struct {
			Ranks []json.RawMessage `json:"ranks"`
		} `json:"otherData"`
	}
	if !sc.Scan() {
		return nil, endedEarly(sc, "got an empty file, want a timeline")
	}
	// The line is the beginning of an object, whose list of events follows on later lines. With a
	// closing brace in place of the comma, the line is a complete object.
	line := append(bytes.TrimSuffix(bytes.Clone(sc.Bytes()), []byte(",")), '}')
	if err := json.Unmarshal(line, &head); err != nil {
		return nil, fmt.Errorf("first line: got %.60q, want the beginning of a timeline: %w", sc.Bytes(), err)
	}
	if !sc.Scan() || sc.Text() != listHead {
		return nil, endedEarly(sc, "second line: got no list of events, want one")
	}
	return head.OtherData.Ranks, nil
}

// copyEvents copies the events of one part. It checks that each line is JSON, because one
// broken line would make the whole file unreadable.
func copyEvents(out *bufio.Writer, sc *bufio.Scanner, hasEvents *bool) error {
	for sc.Scan() {
		line := sc.Bytes()
		if string(line) == listTail {
			return nil
		}
		line = bytes.TrimSuffix(line, []byte(","))
		if len(line) == 0 {
			continue
		}
		if !json.Valid(line) {
			return fmt.Errorf("got %.60q, want an event", line)
		}
		if *hasEvents {
			out.WriteString(",\n")
		}
		*hasEvents = true
		out.Write(line)
	}
	return endedEarly(sc, "got a list of events without an end; the file is cut off")
}

// endedEarly returns the error of a failed read or, if there is none, an error with the given text.
func endedEarly(sc *bufio.Scanner, text string) error {
	if err := sc.Err(); err != nil {
		return fmt.Errorf("cannot be read: %w", err)
	}
	return errors.New(text)
}
