package tcp

import (
	"sync"
	"sync/atomic"
)

// An inbox is the ring between a stream's reader goroutine, which fills it, and Progress, which
// empties it. Its size bounds the number of bytes that are read ahead. The reader writes into the
// part that writable returned, and Progress reads the part that readable returned. Both work
// without the lock, because the parts never overlap.
type inbox struct {
	filled atomic.Int64 // bytes in the ring; changed under mu

	mu     sync.Mutex // guards the rest; bytes are copied without it
	room   sync.Cond  // signals room, a new size, or closed
	buf    []byte
	start  int  // index of the oldest byte
	size   int  // the size to which buf must grow
	closed bool // the reader must stop
	err    error
}

// open allocates the ring and stores the bytes that were read before.
func (b *inbox) open(size int, first []byte) {
	b.room.L = &b.mu
	b.size = size
	b.buf = make([]byte, max(size, len(first)))
	b.filled.Store(int64(copy(b.buf, first)))
}

// grow sets a new size for the ring. The reader makes the larger ring, because it may be writing
// into the current ring without the lock.
func (b *inbox) grow(size int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.size = size
	b.room.Signal()
}

// writable waits until there is room and returns some of it. It returns nil when the reader must
// stop. Only the reader calls it.
func (b *inbox) writable() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	for !b.closed && len(b.buf) >= b.size && int(b.filled.Load()) == len(b.buf) {
		b.room.Wait()
	}
	if b.closed {
		return nil
	}
	n := int(b.filled.Load())
	if len(b.buf) < b.size {
		larger := make([]byte, b.size)
		k := copy(larger, b.buf[b.start:min(b.start+n, len(b.buf))])
		copy(larger[k:n], b.buf)
		b.buf, b.start = larger, 0
	}
	if end := b.start + n; end < len(b.buf) {
		return b.buf[end:]
	}
	end := (b.start + n) % len(b.buf)
	return b.buf[end:b.start]
}

// commit adds the n bytes that the reader has put into the slice from writable. The argument err is
// the error that ended reading, or nil.
func (b *inbox) commit(n int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.filled.Add(int64(n))
	b.err = err
}

// readable returns the oldest bytes that lie in one piece. If there are none and reading has ended,
// it returns the error that ended reading.
//
// Bytes that wrap around the end of the ring come with the next call.
func (b *inbox) readable() ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := int(b.filled.Load())
	if n == 0 {
		return nil, b.err
	}
	return b.buf[b.start:min(b.start+n, len(b.buf))], nil
}

// ended reports whether reading has ended.
func (b *inbox) ended() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err != nil
}

// consume frees the room of the oldest n bytes.
func (b *inbox) consume(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	wasFull := int(b.filled.Load()) == len(b.buf)
	b.start = (b.start + n) % len(b.buf)
	b.filled.Add(int64(-n))
	if wasFull {
		b.room.Signal()
	}
}

// close makes the reader stop.
func (b *inbox) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.room.Signal()
}
