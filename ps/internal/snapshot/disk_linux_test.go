package snapshot

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tutti-go/tutti/internal/test/smalldisk"
)

func TestAFullDiskKeepsTheOlderSnapshotValid(t *testing.T) {
	dir := smalldisk.Dir(t, 20<<10)
	if dir == "" {
		return
	}
	parts := []part{{[]byte("w"), pattern(9<<20, 1)}}
	old := create(t, dir, parts)
	s, err := Begin(dir)
	if err != nil {
		t.Fatal(err)
	}
	w, err := Create(s.Dir, 3)
	if err != nil {
		t.Fatal(err)
	}
	err = w.Part([]byte("w"))
	for range 12 {
		if err == nil {
			_, err = w.Write(parts[0].data[:1<<20])
		}
	}
	if err == nil {
		_, err = w.Close()
	}
	file := filepath.Join(s.Dir, "server-3")
	for _, want := range []string{"write " + file + ": no space left on device; free some space, or name another directory; older snapshots stay valid", "after 11"} {
		if err == nil || !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if _, err2 := w.Close(); err2 != err {
		t.Errorf("closed: got %v, want the same error", err2)
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want the file to be gone", err)
	}
	if found, skipped := find(t, dir); found.Number != old.Number || !slices.Equal(skipped, []uint64{2}) {
		t.Errorf("got snapshot %d, skipped %v, want 1, and 2 skipped", found.Number, skipped)
	}

	// The files fit, and the manifest does not.
	s.Files = []File{write(t, s.Dir, 4, 1<<20, parts)}
	s.Registry = pattern(3<<20, 1)
	if err := s.Commit(); err == nil || !strings.Contains(err.Error(), "free some space") {
		t.Errorf("got %v, want the remedy", err)
	}
	if found, _ := find(t, dir); found.Number != old.Number {
		t.Errorf("got snapshot %d, want 1", found.Number)
	}
	if err := s.Abandon(); err != nil {
		t.Error(err)
	}
	found, skipped := find(t, dir)
	if found.Number != old.Number || skipped != nil {
		t.Errorf("got snapshot %d, skipped %v, want 1", found.Number, skipped)
	}
	equal(t, read(t, found, 0, all), parts)
	if s := create(t, dir, parts); s.Number != 2 {
		t.Errorf("with free space: got snapshot %d, want 2", s.Number)
	}
}

// BenchmarkAgainstDd writes a snapshot of 1 GiB, and as many bytes by dd bs=4M conv=fsync, in turns.
// It reads the snapshot back. Set TMPDIR to the disk that is to be measured.
func BenchmarkAgainstDd(b *testing.B) {
	const size = 1 << 30
	dir, piece := b.TempDir(), pattern(1<<20, 1)
	var snapshot, dd time.Duration
	for b.Loop() {
		start := time.Now()
		if out, err := exec.Command("dd", "if=/dev/zero", "of="+filepath.Join(dir, "dd"), "bs=4M", fmt.Sprint("count=", size>>22), "conv=fsync").CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		dd += time.Since(start)
		if err := os.Remove(filepath.Join(dir, "dd")); err != nil {
			b.Fatal(err)
		}

		start = time.Now()
		s, err := Begin(dir)
		if err != nil {
			b.Fatal(err)
		}
		w, err := Create(s.Dir, 1)
		if err != nil {
			b.Fatal(err)
		}
		for i := range size / len(piece) {
			if i%4 == 0 { // parts of 4 MiB
				if err := w.Part([]byte("head")); err != nil {
					b.Fatal(err)
				}
			}
			if _, err := w.Write(piece); err != nil {
				b.Fatal(err)
			}
		}
		f, err := w.Close()
		if err != nil {
			b.Fatal(err)
		}
		s.Files = []File{f}
		if err := s.Commit(); err != nil {
			b.Fatal(err)
		}
		snapshot += time.Since(start)
		if err := s.Verify(b.Context(), 0); err != nil {
			b.Fatal(err)
		}
		if err := s.Abandon(); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(size)
	rate := func(d time.Duration) float64 { return float64(b.N) * size / 1e6 / d.Seconds() }
	b.ReportMetric(rate(dd), "dd-MB/s")
	b.ReportMetric(rate(snapshot), "snapshot-MB/s")
	b.ReportMetric(100*rate(snapshot)/rate(dd), "%-of-dd")
}
