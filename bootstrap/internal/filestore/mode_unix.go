//go:build unix

package filestore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// Private says that Open refuses a directory in which other users could read or replace values.
const Private = true

// refuseOthers returns an error if users other than root and the user of this process may write in
// a directory. A sticky directory such as /tmp is refused, too, because others could create the
// files before this user.
func refuseOthers(info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return errors.New("its owner is unknown")
	case int(stat.Uid) != os.Geteuid() && stat.Uid != 0:
		return fmt.Errorf("it belongs to user %d, and this process runs as user %d: use a directory of your own", stat.Uid, os.Geteuid())
	case info.Mode().Perm()&0o022 != 0:
		return errors.New("other users may write in it: use a directory of your own, after chmod go-w")
	}
	return nil
}

// isReplaced reports whether err is ESTALE: on NFS, another host has replaced the file while this
// host was reading it.
func isReplaced(err error) bool { return errors.Is(err, syscall.ESTALE) }
