//go:build unix

package atomicfile

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// Root may give a file to anybody, and a program that runs as root may be given one.
func TestAFileKeepsItsOwner(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	uid, gid := os.Getuid(), os.Getgid()
	if groups, err := os.Getgroups(); err == nil && len(groups) > 0 {
		gid = groups[len(groups)-1] // any other that this user may give it to
	}
	if uid == 0 {
		uid, gid = 1234, 4321
	}
	if err := os.Chown(file, uid, gid); err != nil {
		t.Fatal(err)
	}
	owner := func() [2]uint32 {
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		s := info.Sys().(*syscall.Stat_t)
		return [2]uint32{s.Uid, s.Gid}
	}
	before := owner()
	if err := Write(file, []byte("new")); err != nil {
		t.Fatal(err)
	}
	if after := owner(); after != before {
		t.Errorf("it was owner and group %v's, and is %v's", before, after)
	}
	if text, err := os.ReadFile(file); string(text) != "new" || err != nil {
		t.Errorf("it holds %q, %v", text, err)
	}
}
