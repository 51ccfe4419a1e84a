//go:build unix

package coordinator_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/internal/timeline"
)

// TestATimelineFollowsNoLinks puts symbolic links at the names of rank 0's part of the timeline and
// of its temporary file. Another user could do that in a shared folder. The target of the links
// must stay untouched.
func TestATimelineFollowsNoLinks(t *testing.T) {
	leak.Check(t)
	dir := t.TempDir()
	file, precious := filepath.Join(dir, "out.json"), filepath.Join(dir, "precious")
	if err := os.WriteFile(precious, []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	part := timeline.PartName(file, 0)
	for _, name := range []string{part, part + ".new"} {
		if err := os.Symlink(precious, name); err != nil {
			t.Fatal(err)
		}
	}
	if err := comm.Local(1, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		if err := co.StartTimeline(ctx, file); err != nil {
			return err
		}
		return co.StopTimeline(ctx)
	})); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(precious); err != nil || string(got) != "untouched" {
		t.Errorf("a file that a link points to: got %q, %v, want it untouched", got, err)
	}
	if info, err := os.Lstat(part); err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		t.Errorf("the part: got %v, %v, want a file that is not empty", info, err)
	}
}
