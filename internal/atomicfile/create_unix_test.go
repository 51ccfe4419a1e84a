//go:build unix

package atomicfile

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// The new text may be as secret as the old one was.
func TestWhatIsToTakeAFilesPlaceIsItsOwnersAlone(t *testing.T) {
	before := syscall.Umask(0)
	defer syscall.Umask(before)
	file := filepath.Join(t.TempDir(), "f")
	for _, want := range []fs.FileMode{0o666, 0o600} {
		old, err := os.Stat(file)
		if err != nil {
			old = nil
		}
		f, err := create(file, old)
		if err != nil {
			t.Fatal(err)
		}
		if info, err := f.Stat(); err != nil || info.Mode().Perm() != want {
			t.Errorf("got %v, %v, want %v", info, err, want)
		}
		f.Close()
		if err := os.Rename(f.Name(), file); err != nil {
			t.Fatal(err)
		}
	}
}
