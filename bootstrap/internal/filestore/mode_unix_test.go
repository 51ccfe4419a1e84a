//go:build unix

package filestore

import (
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"
)

// An owned is a FileInfo of a directory that belongs to the given user.
type owned struct {
	fs.FileInfo
	user uint32
}

func (o owned) Sys() any { return &syscall.Stat_t{Uid: o.user} }

func TestTheErrorNamesTheOwnerOfTheDirectory(t *testing.T) {
	info, err := os.Stat(privateDir(t))
	if err != nil {
		t.Fatal(err)
	}
	me := uint32(os.Geteuid())
	if err := refuseOthers(owned{info, me + 1}); err == nil || !strings.Contains(err.Error(), "belongs to user") || strings.Contains(err.Error(), "chmod") {
		t.Errorf("of another user: got %v, want the owner, without chmod", err)
	}
	for _, user := range []uint32{me, 0} {
		if err := refuseOthers(owned{info, user}); err != nil {
			t.Errorf("of user %d: got %v, want no error", user, err)
		}
	}
}
