package comm

import (
	"math"
	"sync"

	"github.com/tutti-go/tutti/tensor"
)

// Alloc allocates n zero elements in memory that other ranks can write into directly, as
// MPI_Alloc_mem does. The job's transport must support such memory; otherwise Alloc returns
// ordinary memory. With such memory the sender of a large message copies it once, straight to its
// destination. Alloc speeds up receives of 64 KiB and more. Allocate once and use the memory often.
//
//	in, free, err := comm.Alloc[float32](c, n)
//	...
//	defer free()
//	_, err = comm.Recv(ctx, c, from, tag, in)
//
// The garbage collector does not manage memory of the transport, so neither GOGC nor GOMEMLIMIT
// counts it. Only the returned function free releases it. After free, any access to the memory,
// even a read, crashes the process. Other ranks can write into the memory only while a receive into
// it is under way. If there is such a receive and its sender knows the address, free releases
// nothing and returns fault.Misuse. Calling free twice is no error. For ordinary memory free does
// nothing, because the garbage collector manages it. Any goroutine may call free.
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

// freeOnce returns a function that calls release. Once release has succeeded, the function does
// nothing.
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
