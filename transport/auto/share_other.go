//go:build !linux

package auto

import (
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/shm"
)

// sharer is nil: there is no shm here.
func sharer(*shm.Transport) transport.Sharer { return nil }
