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
	writePartTo(t, timeline.PartName(file, rank), rank)
}

func writePartTo(t *testing.T, name string, rank int) {
	t.Helper()
	f, err := os.Create(name)
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
	writePartTo(t, timeline.PSPartName(file, 1), 1) // a rank that only serves has no other part
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

// A rank with a coordinator and a client of parameter servers has two parts.
func TestBothPartsOfARankAreMerged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, saved := filepath.Join(dir, "out.json"), filepath.Join(dir, "saved.json")
	writePart(t, saved, 0)
	writePartTo(t, timeline.PSPartName(file, 2), 2) // of an earlier job
	const write = `cp "$0.rank0" "$TUTTI_TIMELINE.rank$TUTTI_RANK"; cp "$0.rank0" "$TUTTI_TIMELINE.rank$TUTTI_RANK.ps"`
	start(t, "-np", "2", "--timeline", file, "sh", "-c", write, saved).ends(0)
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, infos, err := timeline.Check(f); err != nil || len(infos) != 4 {
		t.Errorf("got %+v, %v, want two parts of each rank", infos, err)
	}
	if left, _ := filepath.Glob(file + ".rank[01]*"); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
	start(t, "-np", "1", "--timeline", file, "sh", "-c", `: >"$TUTTI_TIMELINE.rank0.ps"`).ends(1, "lacks rank 0, which ended without writing a part")
}

func TestRanksLearnHowOftenServersReport(t *testing.T) {
	t.Parallel()
	const check = `[ "$TUTTI_REPORT_SERVERS" = "$0" ]`
	start(t, "-np", "1", "--report-servers", "10", "sh", "-c", check, "10s").ends(0)
	start(t, "-np", "1", "--report-servers", "1.5m", "sh", "-c", check, "1m30s").ends(0)
	start(t, "-np", "1", "--report-servers", "often", "true").ends(2, `got "often", want seconds`)
}
