//go:build !unix

package filestore

import "io/fs"

// Private is false, because Go's file modes do not show access control lists here.
const Private = false

// refuseOthers returns nil; see Private.
func refuseOthers(fs.FileInfo) error { return nil }

// isReplaced returns false: only NFS clients of Unix systems have this error.
func isReplaced(error) bool { return false }
