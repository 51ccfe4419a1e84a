//go:build !unix

package filestore

import "io/fs"

// Private is false, because Go's file modes do not show access control lists here.
const Private = false

// writableByOthers returns false; see Private.
func writableByOthers(fs.FileInfo) bool { return false }
