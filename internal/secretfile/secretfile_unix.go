//go:build unix

package secretfile

import (
	"io/fs"
	"os"
	"syscall"
)

// readableByOthers reports whether users other than root and the user of this process may read or
// write the file.
func readableByOthers(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return !ok || info.Mode().Perm()&othersBits(int(stat.Uid), os.Geteuid()) != 0
}

// othersBits returns the permissions that a secret file must not give. The parameter owner is the
// user who owns the file, and the parameter user is the one who reads it. The group may read a file
// that root owns and another user reads, because a secret's volume of Kubernetes has no other way
// to hand the file to a pod that does not run as root.
func othersBits(owner, user int) fs.FileMode {
	if owner == 0 && user != 0 {
		return 0o037
	}
	return 0o077
}
