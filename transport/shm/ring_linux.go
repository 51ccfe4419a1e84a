package shm

import (
	"encoding/binary"
	"fmt"
	"math"
	"sync/atomic"
	"unsafe"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/cpu"
	"github.com/tutti-go/tutti/internal/race"
	"github.com/tutti-go/tutti/transport"
)

// The kinds of records; doc.go has their layouts. 0 is no kind, so that a header is never 0.
const (
	kindWhole = 1 + iota
	kindFirst
	kindMore
	kindSkip
	kindWritten
)

const (
	recordAlign = 64 // a record begins at a multiple of this

	// MaxBody is the maximum size of a frame's body, in bytes. No machine has that much memory, so
	// a larger length from a peer is a protocol error.
	MaxBody = int64(1) << 44

	// maxPendingBody is the maximum size of a body before Admit.
	maxPendingBody = 4 << 10

	// A body of up to maxWhole bytes goes into one record, so that its frame can be written under
	// the outbox's lock. A larger body goes in chunks of minChunk to maxChunk bytes. The last chunk
	// may be smaller. maxChunk is a compromise: each chunk costs a header and a check of the
	// doorbell, but the receiver can start to copy when the first chunk is complete.
	maxWhole = 8 << 10
	maxChunk = 32 << 10
	minChunk = 4 << 10

	// While only small frames pass, the producer wraps around at smallWrap. So a Conn for small
	// frames uses little memory, which stays in the caches.
	smallWrap      = 32 << 10
	maxSmallRecord = 2 << 10 // the maximum size of the record of a small frame
	// After a record of up to maxClearRecord bytes, the producer clears the headers in the space
	// that follows. The length of this space is the length of the record plus clearDistance.
	clearDistance  = 16 * recordAlign
	maxClearRecord = 5 << 10
	// The consumer publishes what it has consumed after one returnFraction-th of the ring. Each
	// publication moves a cache line between the cores, so one publication per record would be
	// slow. If the consumer publishes too late, the producer runs out of space.
	returnFraction = 16

	// A body of this size or more begins at a multiple of 64, which makes its copy faster. For
	// smaller bodies, saving space is more important.
	alignFrom = 1 << 10
)

// A recordHeader is the word with which a record begins. For most kinds of records it holds all
// fields.
type recordHeader uint64

// makeHeader returns the header of a record. The arguments are the record's kind, the length of the
// head, the length of the body, and the frame's ID. The caller has checked that each argument fits
// into its bits.
func makeHeader(kind int, head, n int, id uint32) recordHeader {
	return recordHeader(kind) | recordHeader(head)<<4 | recordHeader(n)<<12 | recordHeader(id)<<32
}

// The fields of a header. doc.go has the bits of each.
func (w recordHeader) kind() int  { return int(w & 0xF) }
func (w recordHeader) head() int  { return int(w >> 4 & 0xFF) }
func (w recordHeader) bytes() int { return int(w >> 12 & 0xFFFFF) }
func (w recordHeader) id() uint32 { return uint32(w >> 32) }

// roundUp returns n, rounded up to a multiple of a power of two.
func roundUp(n, to int) int { return (n + to - 1) &^ (to - 1) }

// wholeAt returns the offset of the body in the record of a whole frame.
func wholeAt(head, n int) int {
	if n >= alignFrom {
		return roundUp(8+head, recordAlign)
	}
	return roundUp(8+head, 8)
}

// firstAt returns the offset of the body in the record of a first chunk.
func firstAt(head int) int { return roundUp(16+head, recordAlign) }

// A ring is memory that one producer fills and one consumer empties. Its size is a power of two. A
// position in the ring is the number of bytes that were put before it. So positions only grow, and
// the difference of two positions is a number of bytes:
//
//	           consumed          produced     clearedTo
//	              |                  |            |
//	... consumed  |  records         |  headers   |  bytes of old records ...
//	              |                  |  are 0     |
//
// The producer keeps consumed <= produced <= consumed + size - 64. The header at produced is always
// 0, because the consumer looks there for the next record. A body leaves arbitrary bytes at
// multiples of 64, so the producer clears the header after a record before it publishes that
// record.
//
// Two words order all other accesses, without a lock:
//
//	bytes             who writes, then stores          who loads, then reads or writes
//	of a record       the producer: its header         the consumer reads the record
//	of free space     the consumer, which has read     the producer writes a new record
//	                  them: sharedConsumed             there
//
// Go's atomic operations are sequentially consistent, and they order the plain accesses before and
// after them. The race detector does not know that two mappings are one memory; race.Release
// and race.Acquire inform it.
type ring []byte

// pos returns the offset of a position in the ring's memory.
func (r ring) pos(at uint64) int { return int(at) & (len(r) - 1) }

// headerAt returns the header at a position that is a multiple of 64.
func (r ring) headerAt(at uint64) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&r[r.pos(at)]))
}

// A producer puts records into a ring. One goroutine uses it at a time. It keeps a copy of the
// consumer's count in shared memory, and reads the count again only when the ring seems full.
type producer struct {
	ring           ring
	sharedConsumed *atomic.Uint64 // bytes consumed; the consumer writes it
	doorbell       *doorbell      // the consumer's doorbell, in shared memory

	produced uint64 // all bytes put so far
	consumed uint64 // the last checked value of sharedConsumed
	// The headers from produced up to clearedTo are 0. At least one header lies in between.
	clearedTo uint64
	sawLong   bool // a record longer than maxSmallRecord was put since the ring's beginning
	mustRing  bool // asks the caller to ring the consumer's doorbell
}

// newProducer returns the producer of an empty ring. All bytes of the ring are 0, so all headers
// are clear.
func newProducer(r ring, consumed *atomic.Uint64, b *doorbell) producer {
	return producer{ring: r, sharedConsumed: consumed, doorbell: b, clearedTo: uint64(len(r))}
}

// refreshConsumed reads the consumer's count again. It returns an error if the count has decreased,
// or is larger than the producer's count. Neither happens with a correct consumer.
func (p *producer) refreshConsumed() error {
	consumed := p.sharedConsumed.Load()
	if consumed-p.consumed > p.produced-p.consumed || consumed%recordAlign != 0 {
		return protocolError("got %d bytes consumed, want a multiple of %d from %d to %d", consumed, recordAlign, p.consumed, p.produced)
	}
	p.consumed = consumed
	return nil
}

// freeSpace returns how many bytes can be put, according to the last known count of the consumer.
// It leaves room for the header after the last record.
func (p *producer) freeSpace() int { return len(p.ring) - recordAlign - int(p.produced-p.consumed) }

// reserve finds contiguous space for a record. The argument is the minimum size of the record,
// which is at most a quarter of the ring. reserve returns the size of the space, or 0 if there is
// not enough space now. It puts a skip record when the rest of the ring is too short.
func (p *producer) reserve(least int) (int, error) {
	if p.freeSpace() < least {
		if err := p.refreshConsumed(); err != nil {
			return 0, err
		}
	}
	// A record is contiguous. The producer skips the rest of the ring if the rest is too short. If
	// only small records pass, it also skips the rest when the small part is used up.
	span := len(p.ring) - p.ring.pos(p.produced)
	if span < least || !p.sawLong && p.ring.pos(p.produced) >= smallWrap {
		if p.freeSpace() < span+least {
			if err := p.refreshConsumed(); err != nil {
				return 0, err
			}
		}
		if p.freeSpace() >= span+least {
			p.publish(makeHeader(kindSkip, 0, 0, 0), span)
			p.sawLong = false
			span = len(p.ring)
		}
	}
	if room := min(p.freeSpace(), span); room >= least {
		return room, nil
	}
	return 0, nil
}

// publish makes the record at position produced visible. The record has n bytes, and is complete
// except for its header w. The store of the header is sequentially consistent, and so ordered
// before the load of the doorbell. Either this side sees that the consumer sleeps, or the consumer
// sees the record.
//
// If the consumer finds the record before it sleeps, it clears the field asleep itself. The swap
// detects this, and saves a system call.
func (p *producer) publish(w recordHeader, n int) {
	next := p.produced + uint64(n)
	if next >= p.clearedTo {
		p.clearHeader(next)
		p.clearedTo = next + recordAlign
	}
	race.Release()
	p.ring.headerAt(p.produced).Store(uint64(w))
	p.produced = next
	if p.doorbell.asleep.Load() != 0 && p.doorbell.asleep.Swap(0) != 0 {
		p.mustRing = true
	}
	if n <= maxClearRecord && p.clearedTo-p.produced < uint64(clearDistance/2+n) {
		p.clearHeaders(uint64(clearDistance + n))
	}
}

// clearHeader clears the header at a consumed position. The consumer does not read that header
// until the record in front of it is published, so a plain store is enough.
func (p *producer) clearHeader(at uint64) { *(*uint64)(unsafe.Pointer(p.ring.headerAt(at))) = 0 }

// clearHeaders clears the headers in the next distance bytes. The cache lines of these headers are
// in the consumer's cache. If each line were fetched separately, each fetch would delay a small
// record. clearHeaders fetches several lines at once, so they are in this core's cache when the
// next record is written.
func (p *producer) clearHeaders(distance uint64) {
	end := min(p.produced+distance, p.consumed+uint64(len(p.ring)))
	for ; p.clearedTo < end; p.clearedTo += recordAlign {
		p.clearHeader(p.clearedTo)
	}
}

// putWhole puts a frame of at most maxWhole bytes of body. It returns false when there is no
// space now.
func (p *producer) putWhole(id uint32, head []byte, b *body) (bool, error) {
	at := wholeAt(len(head), b.left)
	n := roundUp(at+b.left, recordAlign)
	room, err := p.reserve(n)
	if room == 0 {
		return false, err
	}
	pos, w := p.ring.pos(p.produced), makeHeader(kindWhole, len(head), b.left, id)
	rec := p.ring[pos : pos+n]
	copy(rec[8:], head)
	b.read(rec[at : at+b.left])
	p.sawLong = p.sawLong || n > maxSmallRecord
	p.publish(w, n)
	return true, nil
}

// putChunk puts the next bytes of a longer body. If these are the first bytes, it puts the head,
// too. It returns the number of bytes put, or 0 when there is no space now.
func (p *producer) putChunk(id uint32, head []byte, first bool, b *body) (int, error) {
	at, kind := recordAlign, kindMore
	if first {
		at, kind = firstAt(len(head)), kindFirst
	}
	room, err := p.reserve(roundUp(at+min(b.left, minChunk), recordAlign))
	if room == 0 {
		return 0, err
	}
	// A chunk may use all the free space, so a nearly full ring can still take one. The length of
	// every chunk but the last is a multiple of 64, because the next record begins at such a
	// multiple anyway.
	n := min(b.left, maxChunk, room-at)
	if n < b.left {
		n &^= recordAlign - 1
	}
	pos := p.ring.pos(p.produced)
	rec := p.ring[pos : pos+roundUp(at+n, recordAlign)]
	w := makeHeader(kindMore, 0, n, 0)
	if first {
		w = makeHeader(kind, len(head), n, id)
		binary.NativeEndian.PutUint64(rec[8:], uint64(b.left))
		copy(rec[16:], head)
	}
	b.read(rec[at : at+n])
	p.sawLong = true
	p.publish(w, len(rec))
	return n, nil
}

// A body is the part of a frame's body that is not in the ring yet.
type body struct {
	one  []byte   // the rest of Frame.Body, or of the current part
	more [][]byte // the parts after one
	left int
}

// read copies the next len(dst) bytes of the body into dst. At least len(dst) bytes are left.
func (b *body) read(dst []byte) {
	b.left -= len(dst)
	for {
		n := copy(dst, b.one)
		b.one, dst = b.one[n:], dst[n:]
		if len(dst) == 0 {
			return
		}
		b.one, b.more = b.more[0], b.more[1:]
	}
}

// A consumer reads records from a ring and passes them to a Sink. It trusts nothing that it
// reads there: a header is read once, and checked before use. The goroutine in Progress owns
// it.
type consumer struct {
	ring           ring
	sharedConsumed *atomic.Uint64 // bytes consumed, as published to the producer
	doorbell       *doorbell      // the producer's doorbell, in shared memory
	pending        *atomic.Bool   // the peer is not admitted yet
	exposures      *exposureTable

	consumed  uint64 // bytes consumed
	published uint64 // the last published value of consumed
	mustRing  bool   // asks the caller to ring the producer's doorbell

	// the frame that is arriving
	head     [transport.MaxHead]byte
	header   transport.Header
	arriving bool
	dst      []byte // the Sink's buffer for the body; nil drops the body
	got      int    // bytes of the body that have arrived
}

// hasRecord reports whether there is a record to read.
func (c *consumer) hasRecord() bool { return c.ring.headerAt(c.consumed).Load() != 0 }

// spin polls for a record. The argument is the maximum number of polls.
func (c *consumer) spin(looks int) {
	for w := c.ring.headerAt(c.consumed); looks > 1 && w.Load() == 0; looks-- {
		cpu.Pause()
	}
}

// next processes the next record, if there is one. It returns the size of the record, or 0 if there
// is no record. The result whole reports whether the record completed a frame.
func (c *consumer) next(in transport.Sink) (n int, whole bool, err error) {
	w := recordHeader(c.ring.headerAt(c.consumed).Load())
	if w == 0 {
		return 0, false, nil
	}
	race.Acquire()
	switch w.kind() {
	case 0:
		return 0, false, protocolError("got record header %#x, want one with a kind", uint64(w))
	case kindWhole, kindFirst:
		return c.beginFrame(w, in)
	case kindMore:
		return c.continueFrame(w, in)
	case kindWritten:
		return c.completeWritten(w, in)
	case kindSkip:
		span := len(c.ring) - c.ring.pos(c.consumed)
		if w != makeHeader(kindSkip, 0, 0, 0) || span == len(c.ring) {
			return 0, false, protocolError("got record header %#x of a skip of %d bytes, want %#x after the ring's beginning", uint64(w), span, uint64(makeHeader(kindSkip, 0, 0, 0)))
		}
		c.consume(span)
		return span, false, nil
	}
	return 0, false, protocolError("got a record of kind %d, want %d to %d", w.kind(), kindWhole, kindWritten)
}

// record returns the next record, of n bytes and with the header w. It fails if the ring cannot
// hold such a record there.
func (c *consumer) record(w recordHeader, n int) ([]byte, error) {
	rest := c.ring[c.ring.pos(c.consumed):]
	if n > len(rest) || w.head() > transport.MaxHead {
		return nil, protocolError("got a record of %d bytes with a head of %d, want at most %d and %d", n, w.head(), len(rest), transport.MaxHead)
	}
	return rest[:n], nil
}

// beginFrame handles the first record of a frame.
//
// The head is copied for two reasons: the peer can change it in the ring at any time, and the
// record is consumed before the frame is complete. A whole frame goes to a CopySink in one call,
// which costs less than calling Buffer and Arrived.
func (c *consumer) beginFrame(w recordHeader, in transport.Sink) (int, bool, error) {
	n, from, at := w.bytes(), 8, wholeAt(w.head(), w.bytes())
	if w.kind() == kindFirst {
		from, at = 16, firstAt(w.head())
	}
	rec, err := c.record(w, roundUp(at+n, recordAlign))
	switch {
	case err != nil:
		return 0, false, err
	case c.arriving:
		return 0, false, protocolError("got the beginning of a frame, want the rest of the current frame, of which %d of %d bytes have arrived", c.got, c.header.Size)
	}
	size := n
	if w.kind() == kindFirst {
		whole := binary.NativeEndian.Uint64(rec[8:])
		if whole > uint64(min(MaxBody, math.MaxInt)) || int(whole) < n || n == 0 {
			return 0, false, protocolError("got a first chunk of %d bytes, want 1 to %d of at most %d", n, whole, MaxBody)
		}
		size = int(whole)
	}
	if size > maxPendingBody && c.pending.Load() {
		return 0, false, failure(fault.Refused, "receive",
			fmt.Errorf("got a body of %d bytes before the peer was admitted, want at most %d", size, maxPendingBody))
	}
	head := c.head[:copy(c.head[:], rec[from:from+w.head()])]
	c.header, c.got = transport.Header{Head: head, ID: w.id(), Size: size}, 0
	if t, ok := in.(transport.CopySink); ok && w.kind() == kindWhole {
		t.Copy(c.header, rec[at:at+n])
		c.consume(len(rec))
		return len(rec), true, nil
	}
	c.dst = in.Buffer(c.header)
	if c.dst != nil && len(c.dst) < size {
		return 0, false, failure(fault.Misuse, "progress",
			fmt.Errorf("got a buffer of %d bytes from the Sink, want %d for the body", len(c.dst), size))
	}
	c.arriving = true
	whole := c.deliver(rec[at:at+n], len(rec), in)
	return len(rec), whole, nil
}

// continueFrame handles a further chunk of the arriving frame.
func (c *consumer) continueFrame(w recordHeader, in transport.Sink) (int, bool, error) {
	n := w.bytes()
	rec, err := c.record(w, roundUp(recordAlign+n, recordAlign))
	switch {
	case err != nil:
		return 0, false, err
	case w != makeHeader(kindMore, 0, n, 0) || n == 0 || !c.arriving || n > c.header.Size-c.got:
		return 0, false, protocolError("got a chunk of %d bytes with header %#x after %d of %d bytes of the frame",
			n, uint64(w), c.got, c.header.Size)
	}
	whole := c.deliver(rec[recordAlign:recordAlign+n], len(rec), in)
	return len(rec), whole, nil
}

// deliver copies a chunk out of the ring, consumes its record of n bytes, and notifies the Sink.
// It returns true when the frame is complete.
func (c *consumer) deliver(chunk []byte, n int, in transport.Sink) (whole bool) {
	if c.dst != nil {
		copy(c.dst[c.got:], chunk)
	}
	c.got += len(chunk)
	c.consume(n)
	whole = c.got == c.header.Size
	if whole {
		c.arriving, c.dst = false, nil
	}
	in.Arrived(c.header, c.got)
	return whole
}

// consume counts n bytes as consumed. It publishes the count to the producer once the unpublished
// bytes reach a returnFraction-th of the ring. Progress publishes the rest when it finds nothing to
// read. The unpublished rest is always smaller than a record needs, so it never blocks the
// producer.
func (c *consumer) consume(n int) {
	c.consumed += uint64(n)
	if c.consumed-c.published >= uint64(len(c.ring)/returnFraction) {
		c.returnSpace()
	}
}

// returnSpace publishes the count of consumed bytes, so the producer can use their space. The store
// is sequentially consistent, and so ordered before the load of the doorbell.
func (c *consumer) returnSpace() {
	c.published = c.consumed
	c.sharedConsumed.Store(c.consumed)
	if w := c.doorbell.wakeAt.Load(); w != 0 && c.consumed >= w && c.doorbell.wakeAt.CompareAndSwap(w, 0) {
		c.mustRing = true
	}
}

// protocolError returns an error that reports invalid data from the peer, in shared memory or on
// the socket. The error ends the Conn.
func protocolError(format string, args ...any) error {
	return failure(fault.LinkLost, "receive", fmt.Errorf("protocol error: "+format, args...))
}
