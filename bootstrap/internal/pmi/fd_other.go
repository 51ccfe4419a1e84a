//go:build !unix

package pmi

import (
	"errors"
	"net"
)

// isConnected returns false, because no process manager passes descriptors on this system.
func isConnected(int) bool { return false }

// adopt fails for the same reason.
func adopt(int) (net.Conn, error) { return nil, errors.ErrUnsupported }
