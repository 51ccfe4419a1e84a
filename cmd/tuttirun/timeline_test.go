//go:build unix

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/tutti-go/tutti/internal/timeline"
)

// writePart writes a rank's part of a timeline next to the timeline's file.
func writePart(t *testing.T, file string, rank int) {
	t.Helper()
	f, err := os.Create(timeline.PartName(file, rank))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := timeline.NewWriter(f, timeline.Info{Rank: rank})
	w.Span("w", "allreduce", 1000, 2000)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestATimelineOfProgramsWithoutACoordinatorIsReported(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "out.json")
	start(t, "-np", "2", "--timeline", file, "true").ends(0, "the timeline "+file+" is empty: no rank")
	start(t, "-q", "-np", "1", "--timeline", filepath.Join(file, "no", "folder"), "true").ends(126)
}

func TestPartsOfAJobStartedOtherwiseAreMergedOnDemand(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "a[1]*.json")
	start(t, "--merge-timeline", file).ends(126, "got no part of "+file+", want "+file+".rank0")
	for _, r := range []int{0, 2} {
		writePart(t, file, r)
	}
	start(t, "--merge-timeline", file).ends(126, "missing or empty: rank 1")
	writePart(t, file, 1)
	start(t, "--merge-timeline", file).ends(0)
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if spans, infos, err := timeline.Check(f); err != nil || len(spans) != 3 || len(infos) != 3 {
		t.Errorf("got %+v, %+v, %v", spans, infos, err)
	}
}
