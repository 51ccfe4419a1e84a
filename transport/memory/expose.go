package memory

import (
	"encoding/binary"
	"sync"

	"github.com/tutti-go/tutti/transport"
)

// A handle names an exposure: its index in the table, and the generation of that entry. A
// generation is unique in the Hub and never 0, so a Token that is stale, or belongs to another
// Conn, finds nothing.
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

// An exposureTable holds the memory that one Conn has exposed to its peer. It reuses entries and
// their release functions, so an Expose for each receive allocates nothing.
//
// The table's mu guards the search for entries and the list of free entries. An entry's mu guards
// the memory that it exposes. No goroutine holds both.
type exposureTable struct {
	mu    sync.Mutex // guards the table, not the entries
	table []*exposure
	free  []uint32
}

// An exposure is one entry of the table. Progress holds its lock while it copies a slice into the
// memory, for at most about 30 µs. The function release may have to wait for that time.
type exposure struct {
	mu         sync.Mutex // guards the rest
	generation uint64     // 0 when the entry is free
	id         uint32
	buf        []byte
	release    func() // made once, returned by each Expose of the entry
}

// Expose implements transport.Exposer. It exposes any memory of the process, since both ends are in
// one process. It never fails. It also reports frames with the ID transport.NoNotify, as the
// contract permits.
func (c *conn) Expose(id uint32, buf []byte) (transport.Token, func(), error) {
	generation := c.home.hub.exposures.Add(1)
	index, e := c.exposures.claim()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.generation, e.id, e.buf = generation, id, buf
	return handle{generation, index}.token(), e.release, nil
}

// claim returns a free entry, or adds one. The table never shrinks: it has as many entries as there
// were exposures at the same time.
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

// release ends an exposure and frees its entry. It waits for the entry's lock while Progress copies
// a slice into the memory. Once the generation is 0 no frame finds the entry any more, so nothing
// writes into the memory after release has returned.
func (x *exposureTable) release(index uint32, e *exposure) {
	e.mu.Lock()
	used := e.generation != 0 // a second release must not free the entry twice
	e.generation, e.buf = 0, nil
	e.mu.Unlock()
	if !used {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.free = append(x.free, index)
}

// lock locks and returns the exposure that s names, or returns nil when the exposure has been
// released. It unlocks the table before it locks the entry. A release may come in between, so lock
// compares the generation afterwards.
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

// find returns the ID of the exposure that s names. The result ok is false unless the body fits
// into the exposed memory at the given offset. The offset comes from the sender and may be any
// number.
func (x *exposureTable) find(s handle, at, size int) (id uint32, ok bool) {
	e := x.lock(s)
	if e == nil {
		return 0, false
	}
	defer e.mu.Unlock()
	return e.id, at >= 0 && at <= len(e.buf) && size <= len(e.buf)-at
}

// write copies n bytes of the body into the exposed memory. The argument off is the offset of these
// bytes in the body. If the memory has been released, write returns false, and the link fails. This
// may happen between two slices of a body.
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
