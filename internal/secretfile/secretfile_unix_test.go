//go:build unix

package secretfile

import (
	"io/fs"
	"os"
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

// secretInfo describes a file that its owner and its group may read.
type secretInfo struct {
	fs.FileInfo
	owner int
}

func (secretInfo) Mode() fs.FileMode { return 0o440 }
func (i secretInfo) Sys() any        { return &syscall.Stat_t{Uid: uint32(i.owner)} }
