package comm

import (
	"math"
	"sync"

	"github.com/tutti-go/tutti/tensor"
)

// Alloc allocates n zero elements that other ranks can write into directly, where the job's
// transport provides such memory; see also MPI_Alloc_mem. The sender then copies a large message
// once, straight to its destination. Elsewhere the memory is ordinary. Alloc speeds up receives of
// 64 KiB and more. Allocate once and use the memory often.
//
//	in, free, err := comm.Alloc[float32](c, n)
//	...
//	defer free()
//	_, err = comm.Recv(ctx, c, from, tag, in)
//
// The garbage collector does not manage memory of the transport. Only free releases it, and it
// counts neither for GOGC nor for GOMEMLIMIT. Other ranks can reach it only while a receive into
// it is under way. After free any access, even a read, crashes the process, as a bad pointer does.
// If a receive into the memory is under way and its sender knows the address, free releases nothing
// and returns fault.Misuse. To call free twice is no error. Ordinary memory is left to the garbage
// collector. free may be called by any goroutine.
//
// Alloc is local. The memory belongs to the process and not to the communicator: any communicator
// of the job may use it, and it stays valid until free, even after the communicators close. The
// errors are fault.Misuse if n is negative or too large, fault.Exhausted if memory is short or too
// many allocations exist, and fault.Closed if the job has been closed.
func Alloc[T Element](c *Comm, n int) (elements []T, free func() error, err error) {
	size := tensor.TypeOf[T]().Size()
	if n < 0 || n > math.MaxInt/size {
		return nil, nil, c.misuse("alloc", "elements: got %d, want 0 to %d", n, math.MaxInt/size)
	}
	mem, release, err := c.rt.wire.alloc(n * size)
	switch {
	case err != nil:
		return nil, nil, c.withOp("alloc", err)
	case release == nil:
		return make([]T, n), func() error { return nil }, nil
	}
	return tensor.Elements[T](mem), c.freeOnce(release), nil
}

// freeOnce returns a function that calls release until release succeeds, and does nothing
// afterwards.
func (c *Comm) freeOnce(release func() error) func() error {
	var mu sync.Mutex // guards released
	released := false
	return func() error {
		mu.Lock()
		defer mu.Unlock()
		if released {
			return nil
		}
		if err := release(); err != nil {
			return c.withOp("free", err)
		}
		released = true
		return nil
	}
}
