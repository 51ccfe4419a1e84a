package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/internal/timeline"
)

// In the timeline of ResNet-50's tensors, pushes and pulls of some tensors are in flight while others
// are computed. The benchmark's routes without an overlap are in the timeline, too.
func TestPushesOverlapWithComputationInTheTimeline(t *testing.T) {
	file := filepath.Join(t.TempDir(), "out.json")
	t.Setenv("TUTTI_TIMELINE", file)
	bench(t, "-local 3 -op training -model resnet50 -servers 1 -time 1h -iterations 5 -format csv")
	for worker := range 2 {
		var parts []io.Reader
		for _, name := range []string{timeline.PartName(file, worker), timeline.PSPartName(file, worker)} {
			f, err := os.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			parts = append(parts, f)
		}
		r, w := io.Pipe()
		go func() { w.CloseWithError(timeline.Merge(w, parts...)) }()
		spans, _, err := timeline.Check(r)
		if err != nil {
			t.Fatal(err)
		}
		both, computing, tensors := overlap(spans)
		t.Logf("worker %d: during %d ms of %d ms of computation, pushes and pulls of %d tensors are in flight", worker, both/1e6, computing/1e6, tensors)
		if want := len(paramsOf("resnet50")); tensors != want || both < computing/10 {
			t.Errorf("worker %d: got an overlap of %d ns of %d ns of computation, with %d tensors; want a tenth, with %d", worker, both, computing, tensors, want)
		}
	}
}

// overlap returns how long a push or pull was in flight during computations, the time of all
// computations, and the number of tensors that were pushed.
func overlap(spans []timeline.ReadSpan) (both, computing int64, tensors int) {
	var transfers []timeline.ReadSpan
	names := make(map[string]bool)
	for _, s := range spans {
		if name, ok := strings.CutPrefix(s.Thread, "push and pull "); ok && s.Name == "pushpull" && s.Depth == 0 {
			name, _, _ = strings.Cut(name, " #")
			names[name] = true
			transfers = append(transfers, s)
		}
	}
	for _, c := range spans {
		if c.Thread != "computation" {
			continue
		}
		computing += c.End - c.Begin
		longest := int64(0) // of one transfer, so that no time counts twice
		for _, s := range transfers {
			longest = max(longest, min(c.End, s.End)-max(c.Begin, s.Begin))
		}
		both += longest
	}
	return both, computing, len(names)
}
