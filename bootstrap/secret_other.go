//go:build !unix

package bootstrap

import "io/fs"

// readableByOthers cannot tell here: Go's file modes do not show access control lists.
func readableByOthers(fs.FileMode) bool { return false }
