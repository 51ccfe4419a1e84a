//go:build !unix

package bootstrap

import (
	"errors"
	"net"
)

// adoptFD always fails, because processes do not inherit descriptors by number on this system.
func adoptFD(int, string) (net.Listener, error) {
	return nil, errors.New("no inherited listeners on this system")
}
