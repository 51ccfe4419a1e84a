//go:build unix

package bootstrap

import "io/fs"

// exposed tells whether users other than the owner may read or write the file.
func exposed(m fs.FileMode) bool { return m.Perm()&0o077 != 0 }
