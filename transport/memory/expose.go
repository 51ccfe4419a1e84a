package memory

import (
	"encoding/binary"
	"sync"

	"github.com/tutti-go/tutti/transport"
)

// A handle names an exposure: its place in the table, and which use of the place
// it is. The generation is unique in the Hub and never 0, so a Token that is
// stale, or another Conn's, finds nothing.
//
//	Token  bytes 0..7   generation
//	       bytes 8..11  index
//	       bytes 12..31 zero
type handle struct {
	generation uint64
	index      uint32
}

func handleOf(t transport.Token) handle {
	return handle{binary.LittleEndian.Uint64(t[:]), binary.LittleEndian.Uint32(t[8:])}
}

func (s handle) token() (t transport.Token) {
	binary.LittleEndian.PutUint64(t[:], s.generation)
	binary.LittleEndian.PutUint32(t[8:], s.index)
	return t
}

// exposureTable is the memory that one Conn has shown to its peer. Places are used
// again, so that exposing for each receive allocates nothing.
type exposureTable struct {
	mu    sync.Mutex // guards the table, not the entries
	table []*exposure
	free  []uint32
}

// An exposure is one place of the table. Its lock is held while a slice is
// copied in: at most about 30 µs, which release may have to wait.
type exposure struct {
	mu         sync.Mutex // guards the rest
	generation uint64     // 0 when the place is free
	id         uint32
	buf        []byte
	release    func() // made once, given out at each use
}

// Expose lets the peer write into buf until release, by frames that name the
// Token and arrive with ID id. release is called once; when it has returned,
// nothing writes into buf any more.
func (c *conn) Expose(id uint32, buf []byte) (transport.Token, func(), error) {
	generation := c.home.hub.exposures.Add(1)
	index, e := c.exposures.claim()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.generation, e.id, e.buf = generation, id, buf
	return handle{generation, index}.token(), e.release, nil
}

// claim finds a free place, or adds one.
func (x *exposureTable) claim() (uint32, *exposure) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if n := len(x.free); n > 0 {
		index := x.free[n-1]
		x.free = x.free[:n-1]
		return index, x.table[index]
	}
	index, e := uint32(len(x.table)), new(exposure)
	e.release = func() { x.release(index, e) }
	x.table = append(x.table, e)
	return index, e
}

// release takes the memory away from the peer and frees the place.
func (x *exposureTable) release(index uint32, e *exposure) {
	e.mu.Lock()
	used := e.generation != 0
	e.generation, e.buf = 0, nil
	e.mu.Unlock()
	if !used {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.free = append(x.free, index)
}

// lock is the exposure that s names, locked; nil when it is released.
func (x *exposureTable) lock(s handle) *exposure {
	x.mu.Lock()
	var e *exposure
	if int(s.index) < len(x.table) {
		e = x.table[s.index]
	}
	x.mu.Unlock()
	if e == nil {
		return nil
	}
	e.mu.Lock()
	if s.generation == 0 || e.generation != s.generation {
		e.mu.Unlock()
		return nil
	}
	return e
}

// find is the ID that s was exposed with, if size bytes fit from at on.
func (x *exposureTable) find(s handle, at, size int) (id uint32, ok bool) {
	e := x.lock(s)
	if e == nil {
		return 0, false
	}
	defer e.mu.Unlock()
	return e.id, at >= 0 && at <= len(e.buf) && size <= len(e.buf)-at
}

// write copies n bytes of the body, from off on, to where the frame says; false
// when the memory was released meanwhile.
func (x *exposureTable) write(s handle, it *item, off, n int) bool {
	e := x.lock(s)
	if e == nil {
		return false
	}
	defer e.mu.Unlock()
	at := it.f.Offset + off
	it.copyPart(e.buf[at:at+n], off)
	return true
}
