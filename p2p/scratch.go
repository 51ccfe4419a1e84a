package p2p

import (
	"math/bits"
	"sync"

	"github.com/tutti-go/tutti/tensor"
)

// scratch is temporary memory of a round. It is a slice of words, which are aligned for every
// element type.
type scratch []uint64

// A scratchPool recycles the scratch memory of one group, by size class. It keeps pieces of at most
// 2^maxClass words, and at most maxPoolWords in total. The garbage collector frees all other
// pieces.
type scratchPool struct {
	mu   sync.Mutex // guards the rest
	free [maxClass + 1][]scratch
	size int // words in free
}

const (
	maxClass     = 23            // 64 MiB
	maxPoolWords = 2 << maxClass // 128 MiB
)

// Scratch returns n bytes of memory with arbitrary content, aligned for every element type. The
// caller may use the memory until the round ends.
func (r *Round) Scratch(n int) []byte {
	if n == 0 {
		return nil
	}
	s := r.g.pool.get((n + 7) / 8)
	r.scratch = append(r.scratch, s)
	return tensor.Bytes([]uint64(s))[:n]
}

// get returns scratch memory of at least the given number of words. It rounds the size up to a
// power of two, so that pieces can be reused.
func (p *scratchPool) get(words int) scratch {
	class := bits.Len(uint(words - 1))
	if class <= maxClass {
		p.mu.Lock()
		defer p.mu.Unlock()
		if n := len(p.free[class]); n > 0 {
			s := p.free[class][n-1]
			p.free[class][n-1] = nil
			p.free[class] = p.free[class][:n-1]
			p.size -= len(s)
			return s
		}
	}
	return make(scratch, 1<<class)
}

// put adds s to the pool. If s is too large or the pool is full, put leaves s to the garbage
// collector.
func (p *scratchPool) put(s scratch) {
	class := bits.Len(uint(len(s) - 1))
	if class > maxClass {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.size+len(s) > maxPoolWords {
		return
	}
	p.size += len(s)
	p.free[class] = append(p.free[class], s)
}
