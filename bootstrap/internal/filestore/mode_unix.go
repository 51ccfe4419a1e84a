//go:build unix

package filestore

import (
	"io/fs"
	"os"
	"syscall"
)

// Private says that Open refuses a directory in which other users could read or replace values.
const Private = true

// writableByOthers reports whether users other than this one and root may write in a directory. It
// ignores that a directory such as /tmp is sticky: others could write files there before this user.
func writableByOthers(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return !ok || info.Mode().Perm()&0o022 != 0 || int(stat.Uid) != os.Geteuid() && stat.Uid != 0
}
