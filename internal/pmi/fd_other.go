//go:build !unix

package pmi

import (
	"errors"
	"net"
)

// isInherited returns false, because no process manager passes descriptors on this system.
func isInherited(int) bool { return false }

// adopt fails, because no process manager passes descriptors on this system.
func adopt(int) (net.Conn, error) { return nil, errors.ErrUnsupported }
