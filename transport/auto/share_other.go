//go:build !linux

package auto

import (
	"errors"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/shm"
)

// sharer is nil: there is no shm here.
func sharer(*shm.Transport) transport.Sharer { return nil }

// alloc refuses: there is no shm here.
func alloc(*shm.Transport, int) ([]byte, func() error, error) {
	return nil, nil, failure(fault.Refused, "allocate", errors.New("no wire on this system exposes memory"))
}
