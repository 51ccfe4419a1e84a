//go:build !unix

package bootstrap

import "io/fs"

// exposed cannot tell here: Go's file modes do not show access control lists.
func exposed(fs.FileMode) bool { return false }
