//go:build unix

package atomicfile

import (
	"io/fs"
	"os"
	"syscall"
)

// giveTo makes f, which this process has made, old's owner's. Where that is refused, old
// keeps its place.
func giveTo(f *os.File, old fs.FileInfo) error {
	was, ok := old.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	now, err := f.Stat()
	if err != nil {
		return err
	}
	if is, ok := now.Sys().(*syscall.Stat_t); ok && is.Uid == was.Uid && is.Gid == was.Gid {
		return nil
	}
	return f.Chown(int(was.Uid), int(was.Gid))
}
