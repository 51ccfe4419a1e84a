//go:build unix

package secretfile

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestGroupMayReadSecretOfRootOnly(t *testing.T) {
	const root, pod, other = 0, 65532, 1000
	for _, c := range []struct {
		mode        fs.FileMode
		owner, user int
		others      bool
	}{
		{0o400, root, root, false},
		{0o440, root, root, true},
		{0o400, pod, pod, false},
		{0o440, pod, pod, true},
		{0o440, other, pod, true},
		{0o440, root, pod, false}, // defaultMode: 0400 and an fsGroup
		{0o640, root, pod, false},
		{0o660, root, pod, true},
		{0o444, root, pod, true},
	} {
		if got := c.mode&othersBits(c.owner, c.user) != 0; got != c.others {
			t.Errorf("mode %o of user %d, read by %d: got %v, want %v", c.mode, c.owner, c.user, got, c.others)
		}
	}
	for _, owner := range []int{root, os.Geteuid()} {
		want := owner != root || os.Geteuid() == root
		if got := readableByOthers(secretInfo{owner: owner}); got != want {
			t.Errorf("owner %d, this process of %d: got %v, want %v", owner, os.Geteuid(), got, want)
		}
	}
}

func TestReadRefusesFilesThatOthersCanRead(t *testing.T) {
	for _, mode := range []fs.FileMode{0o640, 0o604, 0o620, 0o602} {
		path := writeFile(t, "what only this user may know")
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(path); err == nil || !strings.Contains(err.Error(), "can be read by others (mode "+mode.String()+")") {
			t.Errorf("mode %o: got %v, want a refusal", mode, err)
		}
		link := path + ".link"
		if err := os.Symlink(path, link); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(link); err == nil {
			t.Errorf("mode %o, by a symbolic link: got the secret, want a refusal", mode)
		}
	}
}

// The read of a FIFO would wait for a writer.
func TestReadRefusesAFIFO(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); err == nil || !strings.HasPrefix(err.Error(), "is not a regular file") {
		t.Errorf("got %v, want a refusal", err)
	}
}

// secretInfo describes a file that its owner and its group may read.
type secretInfo struct {
	fs.FileInfo
	owner int
}

func (secretInfo) Mode() fs.FileMode { return 0o440 }
func (i secretInfo) Sys() any        { return &syscall.Stat_t{Uid: uint32(i.owner)} }
