package atomicfile_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/internal/atomicfile"
)

// names are the files in a folder.
func names(t *testing.T, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func TestAFileIsWrittenAnewAndNothingElseStays(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	for _, text := range []string{"a long text", "short", ""} {
		if err := atomicfile.Check(file); err != nil {
			t.Errorf("Check says %v", err)
		}
		if err := atomicfile.Write(file, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != text {
			t.Errorf("got %q, %v, want %q", got, err, text)
		}
	}
	if got := strings.Join(names(t, dir), " "); got != "f" {
		t.Errorf("the folder has %q, want f alone", got)
	}
}

// A program that has the old file open reads it to its end.
func TestAReaderOfTheOldFileSeesAllOfIt(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := atomicfile.Write(file, []byte("new")); err != nil {
		t.Fatal(err)
	}
	after, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if os.SameFile(before, after) {
		t.Error("the old file was written to")
	}
}

func TestWhatCannotBeReplacedStaysAndIsToldBefore(t *testing.T) {
	dir := t.TempDir()
	folder := filepath.Join(dir, "folder")
	if err := os.MkdirAll(filepath.Join(folder, "in it"), 0o777); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{folder, filepath.Join(dir, "none", "f")} {
		if err := atomicfile.Check(file); err == nil {
			t.Errorf("%s: Check says it can be replaced", file)
		}
		if err := atomicfile.Write(file, []byte("x")); err == nil {
			t.Errorf("%s was replaced", file)
		}
	}
	if got := strings.Join(names(t, dir), " "); got != "folder" {
		t.Errorf("there are %q, want the folder alone", got)
	}
}
