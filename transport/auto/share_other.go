//go:build !linux

package auto

import (
	"errors"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/shm"
)

// sharer returns nil: this system has no shm.
func sharer(*shm.Transport) transport.Sharer { return nil }

// alloc refuses: this system has no shm.
func alloc(*shm.Transport, int) ([]byte, func() error, error) {
	return nil, nil, failure(fault.Refused, "allocate", errors.New("no wire on this system exposes memory"))
}
