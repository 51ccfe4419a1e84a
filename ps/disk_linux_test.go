package ps_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/internal/test/smalldisk"
	"github.com/tutti-go/tutti/ps"
)

// The first snapshot fits on the disk of the servers, and the second one does not.
func TestASnapshotOnAFullDiskFailsAndTheOlderOneIsRestored(t *testing.T) {
	const size = 1 << 20 // 4 MiB
	dir := smalldisk.Dir(t, 6<<10)
	if dir == "" {
		return
	}
	leak.Check(t)
	for _, wire := range snapshotWires {
		err := run(wire, 3, ps.Servers(2), func(ctx context.Context, cl *ps.Client) error {
			w, err := ps.Declare[float32](ctx, cl, "w", size)
			if err != nil {
				return err
			}
			var first *ps.Snapshot
			for step := range 2 {
				if err := w.Push(ctx, vector(0, step, size)); err != nil {
					return err
				}
				if step == 0 {
					if first, err = cl.Snapshot(ctx, dir); err != nil {
						return err
					}
				}
			}
			_, err = cl.Snapshot(ctx, dir)
			if !errors.Is(err, fault.Exhausted) || !strings.Contains(err.Error(), "no space left on device; free some space, or name another directory; older snapshots stay valid") ||
				!strings.Contains(err.Error(), filepath.Join(dir, "snapshot-00000002", "server-")) {
				return fmt.Errorf("got %v, want fault.Exhausted with the file and the remedy", err)
			}
			if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
				return fmt.Errorf("got %v and %v, want the first snapshot only", entries, err)
			}
			got := make([]float32, size)
			if err := w.Pull(ctx, got); err != nil {
				return err
			}
			if err := equal("after a snapshot that failed", got, vector(0, 1, size)); err != nil {
				return err
			}
			r, err := cl.Restore(ctx, dir)
			if err != nil {
				return err
			}
			if r.Dir != first.Dir || r.Tensors[0] != (ps.RestoredTensor{Name: "w", Before: 2, After: 1}) {
				return fmt.Errorf("restored %+v, want %s", r, first.Dir)
			}
			if err := w.Pull(ctx, got); err != nil {
				return err
			}
			if err := equal("restored", got, vector(0, 0, size)); err != nil {
				return err
			}
			if err := os.RemoveAll(first.Dir); err != nil {
				return err
			}
			_, err = cl.Snapshot(ctx, dir) // with free space
			return err
		})
		if err != nil {
			t.Errorf("%s: %v", wire, err)
		}
		if err := os.RemoveAll(filepath.Join(dir, "snapshot-00000001")); err != nil {
			t.Error(err)
		}
	}
}
