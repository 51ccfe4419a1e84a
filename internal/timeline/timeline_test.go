package timeline_test

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/internal/timeline"
)

// part returns the part of a rank, with two tensors whose names need quoting.
func part(t *testing.T, rank int) string {
	t.Helper()
	var b bytes.Buffer
	w := timeline.NewWriter(&b, timeline.Info{Rank: rank, Host: `a "host"`, Offset: -5, Error: 2})
	for i, name := range []string{`w"1"`, "ü\\\n", `w"1"`} {
		at := int64(1_000_000_001 * (i + 1))
		w.Span(name, "allreduce", at, at+3001, timeline.Arg{Name: "bytes", Value: 12}, timeline.Arg{Name: "type", Text: "float32"})
		w.Span(name, "wire", at+1, at+3001)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestAPartAndAMergedTimelineAreValid(t *testing.T) {
	spans, infos, err := timeline.Check(strings.NewReader(part(t, 3)))
	if err != nil || len(spans) != 6 || len(infos) != 1 || infos[0] != (timeline.Info{Rank: 3, Host: `a "host"`, Offset: -5, Error: 2}) {
		t.Fatalf("a part: %d spans, %+v, %v", len(spans), infos, err)
	}
	want := timeline.ReadSpan{Rank: 3, Thread: `w"1"`, Name: "wire", Begin: 1_000_000_002, End: 1_000_003_002, Depth: 1}
	if spans[1] != want {
		t.Errorf("got %+v, want %+v", spans[1], want)
	}
	var all bytes.Buffer
	if err := timeline.Merge(&all, strings.NewReader(part(t, 0)), strings.NewReader(part(t, 1)), strings.NewReader(part(t, 2))); err != nil {
		t.Fatal(err)
	}
	spans, infos, err = timeline.Check(&all)
	if err != nil || len(spans) != 18 || len(infos) != 3 {
		t.Fatalf("merged: %d spans, %+v, %v", len(spans), infos, err)
	}
}

func TestMergeRefusesWhatIsNoWholePart(t *testing.T) {
	whole := part(t, 1)
	for what, text := range map[string]string{
		"empty": "", "other JSON": "{}", "broken off": whole[:len(whole)-20], "half an event": strings.Replace(whole, `"dur":`, `"dur`, 1),
	} {
		if err := timeline.Merge(io.Discard, strings.NewReader(whole), strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), "part 1") {
			t.Errorf("%s: got %v, want an error about part 1", what, err)
		}
	}
}

func TestCheckRefusesWhatViewersCannotShow(t *testing.T) {
	const name = `{"name":"thread_name","ph":"M","pid":0,"tid":1,"args":{"name":"w"}}`
	span := func(ts, dur string) string {
		return fmt.Sprintf(`{"name":"x","ph":"X","pid":0,"tid":1,"ts":%s,"dur":%s}`, ts, dur)
	}
	for what, events := range map[string]string{
		"crossing":      name + "," + span("1.000", "5.000") + "," + span("3.000", "5.000"),
		"no thread":     `{"name":"x","ph":"X","pid":0,"ts":1.000,"dur":1.000}`,
		"no name":       span("1.000", "1.000"),
		"before 0":      name + "," + span("-1.000", "1.000"),
		"unknown phase": `{"name":"x","ph":"?","pid":0,"tid":1}`,
	} {
		if spans, _, err := timeline.Check(strings.NewReader(`{"traceEvents":[` + events + `]}`)); err == nil {
			t.Errorf("%s: got %+v, want an error", what, spans)
		}
	}
}

func TestARingKeepsTheLastAndCountsTheOthers(t *testing.T) {
	var r timeline.Ring[int]
	for i := range timeline.MaxRecords + 5 {
		r.Add(i)
	}
	all, dropped := r.All()
	if len(all) != timeline.MaxRecords || dropped != 5 || all[0] != 5 || all[len(all)-1] != timeline.MaxRecords+4 {
		t.Errorf("got %d records from %d to %d, and %d dropped; want %d from 5 to %d, and 5", len(all), all[0], all[len(all)-1], dropped, timeline.MaxRecords, timeline.MaxRecords+4)
	}
}
