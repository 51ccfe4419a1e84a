package filestore

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// privateDir returns a new directory that Open accepts, whatever the process's umask.
func privateDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A reader may see a file of which only a part has arrived, and a file that is too long. The tests
// of package bootstrap cover the rest.
func TestAPartOfAFileIsNoText(t *testing.T) {
	dir := privateDir(t)
	d, err := Open(dir, "job.0", 0, 4)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for rank, text := range []string{"", "part", strings.Repeat("x", maxFixed+4*maxNonce) + "\n", "a text\n"} {
		if err := os.WriteFile(filepath.Join(dir, "job.0."+string(rune('0'+rank))), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := d.Next(t.Context()); err != nil || strings.Join(got, "|") != "|||a text" {
		t.Errorf("got %q and %v, want only the text of rank 3", got, err)
	}
}

func TestOpenRefusesADirectoryThatOthersMayWriteTo(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o770); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, "job", 0, 2); Private && (err == nil || !strings.Contains(err.Error(), "chmod go-w")) {
		t.Errorf("got %v, want the remedy chmod go-w", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(file, "job", 0, 2); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("a file: got %v, want that it is no directory", err)
	}
	if _, err := Open(filepath.Join(dir, "no", "such"), "job", 0, 2); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no parent: got %v, want ErrNotExist", err)
	}
}
