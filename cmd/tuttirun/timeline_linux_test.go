package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/tutti-go/tutti/internal/timeline"
)

func TestATimelineOnAFullDiskFailsTheJob(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, saved := filepath.Join(dir, "out.json"), filepath.Join(dir, "saved.json")
	// Every write to this file fails as on a full disk.
	if err := os.Symlink("/dev/full", file); err != nil {
		t.Fatal(err)
	}
	for r := range 2 {
		writePart(t, saved, r)
	}
	const write = `cp "$0.rank$TUTTI_RANK" "$TUTTI_TIMELINE.rank$TUTTI_RANK"`
	start(t, "-np", "2", "--timeline", file, "sh", "-c", write, saved).ends(1,
		"the timeline "+file+" is not written: ", "no space left on device", file+".rank* are kept for --merge-timeline")
	for r := range 2 {
		if info, err := os.Stat(timeline.PartName(file, r)); err != nil || info.Size() == 0 {
			t.Errorf("the part of rank %d: got %v, %v, want it kept", r, info, err)
		}
	}
	start(t, "-np", "2", "--timeline", file, "sh", "-c", write+"; exit 7", saved).ends(7, "no space left on device")
}

// A rank whose coordinator cannot write its part leaves the part empty, and logs a warning.
// tuttirun must then fail, although the ranks ended well.
func TestATimelineWithoutAPartOfARankThatEndedWellFailsTheJob(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, saved := filepath.Join(dir, "out.json"), filepath.Join(dir, "saved.json")
	writePart(t, saved, 0)
	start(t, "-np", "3", "--timeline", file, "sh", "-c",
		`case $TUTTI_RANK in 0) cp "$0.rank0" "$TUTTI_TIMELINE.rank0";; *) : >"$TUTTI_TIMELINE.rank$TUTTI_RANK";; esac`, saved).ends(1,
		"lacks ranks 1, 2", "lacks ranks 1, 2, which ended without writing a part", "full disk")
	start(t, "-np", "1", "--timeline", file, "sh", "-c", `: >"$TUTTI_TIMELINE.rank0"`).ends(1, "lacks rank 0, which ended without writing a part")
}
