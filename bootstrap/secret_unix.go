//go:build unix

package bootstrap

import "io/fs"

// readableByOthers reports whether users other than the owner may read or write the file.
func readableByOthers(m fs.FileMode) bool { return m.Perm()&0o077 != 0 }
