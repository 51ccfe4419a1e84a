package ps

import (
	"math/bits"
	"sync"

	"github.com/tutti-go/tutti/ps/internal/storage"
)

// A pool keeps memory for bodies. The sizes are the multiples of a quarter of a power of two, so at
// most a fifth of a buffer is unused. The pool keeps at most limit bytes that nobody uses. Any
// goroutine may call its methods.
type pool struct {
	limit int64

	mu   sync.Mutex
	free map[int][][]byte // by size
	kept int64
}

// roundSize returns the size of the memory for n bytes.
func roundSize(n int) int {
	quarter := 1 << max(0, bits.Len(uint(max(n, 64)-1))-3)
	return (max(n, 64) + quarter - 1) &^ (quarter - 1)
}

// get returns a buffer of n bytes, whose contents are undefined. The buffer returns to the pool when
// it is released.
func (p *pool) get(n int) *storage.Buffer {
	size := roundSize(n)
	p.mu.Lock()
	var b []byte
	if list := p.free[size]; len(list) > 0 {
		b = list[len(list)-1]
		p.free[size] = list[:len(list)-1]
		p.kept -= int64(size)
	}
	p.mu.Unlock()
	if b == nil {
		b = make([]byte, size)
	}
	return storage.NewBuffer(b[:n], func() { p.put(b) })
}

func (p *pool) put(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kept+int64(len(b)) <= p.limit {
		if p.free == nil {
			p.free = make(map[int][][]byte)
		}
		p.free[len(b)] = append(p.free[len(b)], b)
		p.kept += int64(len(b))
	}
}
