//go:build !unix

package bootstrap

import (
	"errors"
	"net"
)

// adoptConn fails, because no launcher passes descriptors on this system.
func adoptConn(int) (net.Conn, error) { return nil, errors.ErrUnsupported }
