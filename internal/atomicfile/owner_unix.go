//go:build unix

package atomicfile

import (
	"io/fs"
	"os"
	"syscall"
)

// giveTo makes f, which this process has made, old's owner's and group's, if it may:
// root's programs write files of others.
func giveTo(f *os.File, old fs.FileInfo) {
	if s, ok := old.Sys().(*syscall.Stat_t); ok {
		f.Chown(int(s.Uid), int(s.Gid)) // what is refused leaves a file as this process makes them
	}
}
