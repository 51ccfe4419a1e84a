package comm

import (
	"errors"
	"math"
	"sync"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/tensor"
	"github.com/tutti-go/tutti/transport"
)

// A Buffer is memory for elements that other ranks may be allowed to write into. Where the job's
// transport has such memory, a large message that is received into any part of it is copied once,
// by its sender, straight to its destination. Otherwise it is ordinary memory. It helps receives
// of 64 KiB and more, and does no harm elsewhere; it pays to make it once and use it often.
//
// Memory of the transport is outside the garbage collector's: it is not freed when nothing refers
// to the Buffer or to a slice of it, but by Close alone, and it counts neither for GOGC nor for
// GOMEMLIMIT. No other rank can reach it except while a receive into it is under way.
//
// Slice may be called concurrently. Nobody may use the memory while Close runs.
type Buffer[T Element] struct {
	c *Comm

	mu   sync.Mutex // guards the rest
	all  []T
	free func() error // nil: it is ordinary memory
}

// Alloc makes a Buffer of n zero elements.
//
//	room, err := comm.Alloc[float32](c, n)
//	...
//	defer room.Close()
//	_, err = comm.Recv(ctx, c, from, tag, room.Slice())
//
// It is local. The memory belongs to the process and not to the communicator: any communicator
// of the job may use it, and it stays when they close, until its own Close. Errors:
// fault.Misuse for an n that is negative or too large, fault.Exhausted when there is not
// enough memory, or too many Buffers exist, fault.Closed when the job has been closed.
func Alloc[T Element](c *Comm, n int) (*Buffer[T], error) {
	size := tensor.TypeOf[T]().Size()
	if n < 0 || n > math.MaxInt/size {
		return nil, c.misuse("alloc", "elements: got %d, want 0 to %d", n, math.MaxInt/size)
	}
	b := &Buffer[T]{c: c}
	if a, ok := c.rt.wire.(transport.Allocator); ok {
		mem, free, err := a.Alloc(n * size)
		switch {
		case err == nil:
			b.all, b.free = tensor.Elements[T](mem), free
			return b, nil
		case !errors.Is(err, fault.Refused):
			return nil, c.withOp("alloc", err)
		}
	}
	b.all = make([]T, n)
	return b, nil
}

// Slice returns the memory; nil after Close. Every part of it may be received into.
func (b *Buffer[T]) Slice() []T {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all
}

// Close frees the memory, which must not be touched afterwards, not even read: that ends the
// process, as a bad pointer does. While a receive that its sender knows of is under way into
// the memory, Close frees nothing and returns fault.Misuse. Closing twice is no error.
// Ordinary memory is left to the garbage collector.
func (b *Buffer[T]) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.free != nil {
		if err := b.free(); err != nil {
			return b.c.withOp("close a buffer", err)
		}
	}
	b.all, b.free = nil, nil
	return nil
}
