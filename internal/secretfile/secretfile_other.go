//go:build !unix

package secretfile

import "io/fs"

// readableByOthers returns false, because Go's file modes do not show access control lists here.
func readableByOthers(fs.FileInfo) bool { return false }
