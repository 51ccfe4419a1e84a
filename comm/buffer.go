package comm

import (
	"errors"
	"math"
	"sync"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/tensor"
	"github.com/tutti-go/tutti/transport"
)

// A Buffer is memory for elements that other ranks can write into directly. Where the job's
// transport provides such memory, the sender copies a large message once, straight to its
// destination in the Buffer. Where the transport provides none, a Buffer is ordinary memory. A
// Buffer speeds up receives of 64 KiB and more. Make it once and use it often.
//
// The garbage collector does not manage memory of the transport. Only Close frees it, and it
// counts neither for GOGC nor for GOMEMLIMIT. Other ranks can reach it only while a receive into
// it is under way.
//
// Slice may be called concurrently. Nobody may use the memory while Close runs.
type Buffer[T Element] struct {
	c *Comm

	mu   sync.Mutex // guards the rest
	all  []T
	free func() error // frees memory of the transport; nil for ordinary memory
}

// Alloc makes a Buffer of n zero elements.
//
//	room, err := comm.Alloc[float32](c, n)
//	...
//	defer room.Close()
//	_, err = comm.Recv(ctx, c, from, tag, room.Slice())
//
// Alloc is local. The memory belongs to the process and not to the communicator: any communicator
// of the job may use it, and it stays valid until Buffer.Close, even after the communicators
// close. The errors are fault.Misuse if n is negative or too large, fault.Exhausted if memory is
// short or too many Buffers exist, and fault.Closed if the job has been closed.
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

// Slice returns the memory, or nil after Close. A receive may use any part of it.
func (b *Buffer[T]) Slice() []T {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all
}

// Close frees the memory. Any later access, even a read, crashes the process, as a bad pointer
// does. If a receive into the memory is under way and its sender knows the address, Close frees
// nothing and returns fault.Misuse. Closing twice is no error. Close leaves ordinary memory to the
// garbage collector.
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
