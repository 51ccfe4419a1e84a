//go:build !unix

package bootstrap

import (
	"errors"
	"net"
)

// adoptFD always fails here: descriptors are not inherited by number.
func adoptFD(int, string) (net.Listener, error) {
	return nil, errors.New("no inherited listeners on this system")
}
