package auto

import (
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/shm"
)

// sharer returns t as a Sharer.
func sharer(t *shm.Transport) transport.Sharer { return t }

// alloc allocates shm's memory.
func alloc(t *shm.Transport, size int) ([]byte, func() error, error) { return t.Alloc(size) }
