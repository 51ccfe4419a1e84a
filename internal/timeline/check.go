package timeline

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
)

// A ReadSpan is a span of a timeline as Check has read it, in nanoseconds.
type ReadSpan struct {
	Rank         int
	Thread, Name string
	Begin, End   int64
	Depth        int // the number of spans around it
}

// An event is one line of the list of events. PID and TID are pointers, so that a missing field
// differs from 0. Numbers stay text, because a float would lose digits.
type event struct {
	Name string      `json:"name"`
	Ph   string      `json:"ph"`
	PID  *int        `json:"pid"`
	TID  *int        `json:"tid"`
	TS   json.Number `json:"ts"`
	Dur  json.Number `json:"dur"`
	Args struct {
		Name string `json:"name"`
	} `json:"args"`
}

// Check reads a timeline with a JSON parser that does not know how it was written. It returns the
// spans, sorted by rank, thread and time, and the Info of each rank.
//
// Check is stricter than viewers: every event must have a process and a thread, times must not
// be negative, threads must be named, and spans of one thread must nest. Anything else is an
// error.
func Check(r io.Reader) ([]ReadSpan, []Info, error) {
	var file struct {
		TraceEvents []event `json:"traceEvents"`
		OtherData   struct {
			Ranks []Info `json:"ranks"`
		} `json:"otherData"`
	}
	if err := json.NewDecoder(r).Decode(&file); err != nil {
		return nil, nil, err
	}
	type thread struct{ pid, tid int }
	names := make(map[thread]string)
	spans := make(map[thread][]ReadSpan)
	var order []thread
	for i, e := range file.TraceEvents {
		if e.PID == nil || e.TID == nil || e.Name == "" {
			return nil, nil, fmt.Errorf("event %d: got at least one of name, pid and tid missing, want all three", i)
		}
		at := thread{*e.PID, *e.TID}
		switch {
		case e.Ph == "M" && e.Name == "thread_name":
			names[at] = e.Args.Name
		case e.Ph == "X":
			begin, err := nanos(e.TS)
			dur, err2 := nanos(e.Dur)
			if err != nil || err2 != nil {
				return nil, nil, fmt.Errorf("event %d: got times %q and %q, want microseconds with three decimals", i, e.TS, e.Dur)
			}
			if spans[at] == nil {
				order = append(order, at)
			}
			spans[at] = append(spans[at], ReadSpan{Rank: at.pid, Name: e.Name, Begin: begin, End: begin + dur})
		case e.Ph != "M":
			return nil, nil, fmt.Errorf("event %d: got phase %q, want X or M", i, e.Ph)
		}
	}
	slices.SortFunc(order, func(a, b thread) int { return cmp.Or(a.pid-b.pid, a.tid-b.tid) })
	var all []ReadSpan
	for _, at := range order {
		if names[at] == "" {
			return nil, nil, fmt.Errorf("thread %d of rank %d: got no name", at.tid, at.pid)
		}
		if err := nest(spans[at], names[at]); err != nil {
			return nil, nil, err
		}
		all = append(all, spans[at]...)
	}
	return all, file.OtherData.Ranks, nil
}

// nanos parses microseconds with exactly three decimals. Other numbers are legal in the format, but
// a Writer does not write them.
func nanos(n json.Number) (int64, error) {
	var micros, rest int64
	if _, err := fmt.Sscanf(string(n), "%d.%03d", &micros, &rest); err != nil {
		return 0, err
	}
	if micros < 0 {
		return 0, fmt.Errorf("got a negative time")
	}
	return 1000*micros + rest, nil
}

// nest sorts the spans of a thread by begin, longer spans first, and sets each span's Depth. A span
// that begins within another span must also end within it.
func nest(list []ReadSpan, name string) error {
	slices.SortStableFunc(list, func(a, b ReadSpan) int { return cmp.Or(cmp.Compare(a.Begin, b.Begin), cmp.Compare(b.End, a.End)) })
	var open []ReadSpan
	for i := range list {
		s := &list[i]
		s.Thread = name
		// open is the stack of spans that may contain s.
		for len(open) > 0 && open[len(open)-1].End <= s.Begin {
			open = open[:len(open)-1]
		}
		if n := len(open); n > 0 && open[n-1].End < s.End {
			return fmt.Errorf("rank %d, %s: %s ends at %d ns, after the end of %s, in which it begins, at %d ns", s.Rank, name, s.Name, s.End, open[n-1].Name, open[n-1].End)
		}
		s.Depth = len(open)
		open = append(open, *s)
	}
	return nil
}
