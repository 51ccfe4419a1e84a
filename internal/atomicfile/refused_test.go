package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// As for a file that is mounted by itself, or another user's in a sticky folder.
func TestAFileThatCannotBeReplacedIsWrittenWhereItIs(t *testing.T) {
	for _, why := range []error{syscall.EBUSY, syscall.EPERM, syscall.EACCES} {
		dir := t.TempDir()
		file := filepath.Join(dir, "f")
		refuse := func(from, to string) error { return &os.LinkError{Op: "rename", Old: from, New: to, Err: why} }
		err := write(file, []byte("new"), refuse)
		if err == nil || !strings.Contains(err.Error(), file) || strings.Contains(err.Error(), beside) {
			t.Errorf("%v, and there is no file: got %v, want an error that names it", why, err)
		}
		if err := os.WriteFile(file, []byte("the old text"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := write(file, []byte("new"), refuse); err != nil {
			t.Errorf("%v: %v", why, err)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != "new" {
			t.Errorf("%v: the file has %q, %v", why, got, err)
		}
		if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
			t.Errorf("%v: the folder has %v, %v", why, list, err)
		}
	}
}

// As for one on a file system that is read only: neither way leads there.
func TestWhatIsNotWrittenEitherWaySaysBoth(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	gone := func(from, to string) error { // with its folder, so that there is nothing to write to
		if err := os.RemoveAll(filepath.Dir(file)); err != nil {
			t.Error(err)
		}
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: syscall.EBUSY}
	}
	err := write(file, []byte("new"), gone)
	if !errors.Is(err, syscall.EBUSY) || !errors.Is(err, fs.ErrNotExist) || strings.Contains(err.Error(), beside) {
		t.Errorf("got %v, want why it was not replaced, and why not written to", err)
	}
}

func TestAFileThatFailsOtherwiseStays(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := write(file, []byte("new"), func(from, to string) error { return &os.LinkError{Op: "rename", Old: from, New: to, Err: syscall.EIO} })
	if got, e := os.ReadFile(file); err == nil || e != nil || string(got) != "old" {
		t.Errorf("got %v, and the file has %q, %v", err, got, e)
	}
}
