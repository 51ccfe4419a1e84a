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

// The kinds of records.
const (
	kindWhole = 1 + iota
	kindFirst
	kindMore
	kindSkip
	kindWritten
)

const (
	cacheLine = 64 // bytes; what records begin at a multiple of

	// MaxBody is the most bytes of body that a frame may have: more than any
	// machine has memory, so that a length beyond it is nonsense.
	MaxBody = int64(1) << 44

	// maxPendingBody is the most bytes of body before Admit.
	maxPendingBody = 4 << 10

	maxWhole = 8 << 10  // the longest body that goes into one record
	maxChunk = 32 << 10 // the most bytes of body in a record
	minChunk = 4 << 10  // the fewest, unless they are the last

	// While only small frames pass, the ring is used up to here, so that a Conn
	// for small frames has little memory, and that is in the caches.
	smallWrap      = 32 << 10
	maxSmallRecord = 2 << 10 // the longest record of a small frame
	// clearDistance is how far ahead words are cleared for small records, besides the
	// room of one more record of the last one's size; wipeMost is the longest of them.
	clearDistance  = 16 * cacheLine
	maxClearRecord = 5 << 10
	// returnFraction is the part of the ring after which the consumer gives room back.
	returnFraction = 16

	alignFrom = 1 << 10 // from so many bytes on, a body begins a line
)

// A recordHeader is how a record begins: all that there is to know about most of them.
type recordHeader uint64

func makeHeader(kind int, head, n int, id uint32) recordHeader {
	return recordHeader(kind) | recordHeader(head)<<4 | recordHeader(n)<<12 | recordHeader(id)<<32
}

func (w recordHeader) kind() int  { return int(w & 0xF) }
func (w recordHeader) head() int  { return int(w >> 4 & 0xFF) }
func (w recordHeader) bytes() int { return int(w >> 12 & 0xFFFFF) }
func (w recordHeader) id() uint32 { return uint32(w >> 32) }

// roundUp is n, up to the next multiple of a power of two.
func roundUp(n, to int) int { return (n + to - 1) &^ (to - 1) }

// wholeAt is where the body begins in the record of a whole frame.
func wholeAt(head, n int) int {
	if n >= alignFrom {
		return roundUp(8+head, cacheLine)
	}
	return roundUp(8+head, 8)
}

// firstAt is where the body begins in the record of a first chunk.
func firstAt(head int) int { return roundUp(16+head, cacheLine) }

// A ring is memory that one producer fills and one consumer empties, of a size
// that is a power of two. Places in it are given by how many bytes were put
// before them in all.
type ring []byte

// pos is where at lies in the ring.
func (r ring) pos(at uint64) int { return int(at) & (len(r) - 1) }

// headerAt is the word at a place that is a multiple of the line.
func (r ring) headerAt(at uint64) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&r[r.pos(at)]))
}

// A producer puts records into a ring. It belongs to one goroutine at a time.
type producer struct {
	ring           ring
	sharedConsumed *atomic.Uint64 // how many bytes the consumer has taken; shared
	doorbell       *doorbell      // the consumer's; shared

	produced  uint64 // bytes put
	consumed  uint64 // taken as last read, and found possible
	clearedTo uint64 // every line from at to here begins with 0, and at least one does
	sawLong   bool   // a record that is not short was put since the ring's beginning
	mustRing  bool   // the consumer's bell is to be rung
}

func newProducer(r ring, taken *atomic.Uint64, b *doorbell) producer {
	return producer{ring: r, sharedConsumed: taken, doorbell: b, clearedTo: uint64(len(r))}
}

// refreshConsumed reads how far the consumer is. It can neither go back nor be ahead of
// what was put.
func (p *producer) refreshConsumed() error {
	t := p.sharedConsumed.Load()
	if t-p.consumed > p.produced-p.consumed || t%cacheLine != 0 {
		return protocolError("%d bytes taken, of %d, after %d", t, p.produced, p.consumed)
	}
	p.consumed = t
	return nil
}

// freeSpace is how many bytes can be put, as far as is known: one line is kept for
// the word behind the last record.
func (p *producer) freeSpace() int { return len(p.ring) - cacheLine - int(p.produced-p.consumed) }

// reserve finds room in one piece for a record of at least so many bytes, and
// returns how much there is; 0 when there is none now. least is no more than a
// quarter of the ring.
func (p *producer) reserve(least int) (int, error) {
	if p.freeSpace() < least {
		if err := p.refreshConsumed(); err != nil {
			return 0, err
		}
	}
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

// publish makes the record at the ring's end visible, which has n bytes and is
// complete but for its word. The swap that Store is orders it before the look at
// the bell: either we see that the consumer sleeps, or it sees the record.
func (p *producer) publish(w recordHeader, n int) {
	next := p.produced + uint64(n)
	if next >= p.clearedTo {
		p.clearHeader(next)
		p.clearedTo = next + cacheLine
	}
	race.Release()
	p.ring.headerAt(p.produced).Store(uint64(w))
	p.produced = next
	if p.doorbell.asleep.Load() != 0 && p.doorbell.asleep.Swap(0) != 0 {
		p.mustRing = true
	}
	if n <= maxClearRecord && p.clearedTo-p.produced < uint64(clearDistance/2+n) {
		p.clearAhead(uint64(clearDistance + n))
	}
}

// clearHeader clears the word at a place that the consumer is done with, and does not
// look at before the record in front of it is published.
func (p *producer) clearHeader(at uint64) { *(*uint64)(unsafe.Pointer(p.ring.headerAt(at))) = 0 }

// clearAhead clears several words ahead. The lines have to come from the consumer's
// cache; one by one, each small record would wait for the next one's. A record that
// is longer has all its lines here then when the next message is written, and that
// one does not wait for them.
func (p *producer) clearAhead(ahead uint64) {
	end := min(p.produced+ahead, p.consumed+uint64(len(p.ring)))
	for ; p.clearedTo < end; p.clearedTo += cacheLine {
		p.clearHeader(p.clearedTo)
	}
}

// putWhole puts a frame of at most wholeMost bytes of body; false when there is no
// room now.
func (p *producer) putWhole(id uint32, head []byte, b *body) (bool, error) {
	at := wholeAt(len(head), b.left)
	n := roundUp(at+b.left, cacheLine)
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

// putChunk puts the next bytes of a longer body, preceded by the head if they are
// the first. It returns how many; 0 when there is no room now.
func (p *producer) putChunk(id uint32, head []byte, first bool, b *body) (int, error) {
	at, kind := cacheLine, kindMore
	if first {
		at, kind = firstAt(len(head)), kindFirst
	}
	room, err := p.reserve(roundUp(at+min(b.left, minChunk), cacheLine))
	if room == 0 {
		return 0, err
	}
	n := min(b.left, maxChunk, room-at)
	if n < b.left {
		n &^= cacheLine - 1
	}
	pos := p.ring.pos(p.produced)
	rec := p.ring[pos : pos+roundUp(at+n, cacheLine)]
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

// A body is what is left to be put of a frame's body.
type body struct {
	one  []byte   // its bytes, or those of the part under way
	more [][]byte // the parts after that
	left int
}

// read copies the next len(dst) bytes; there are as many.
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

// A consumer takes records out of a ring and hands them to a Sink. Nothing that
// it reads there is believed. It belongs to whoever is in Progress.
type consumer struct {
	ring           ring
	sharedConsumed *atomic.Uint64 // how many bytes were taken; shared
	doorbell       *doorbell      // the producer's; shared
	pending        *atomic.Bool   // the peer has proven nothing yet
	exposures      *exposureTable

	consumed  uint64 // bytes taken
	published uint64 // taken as last stored
	mustRing  bool   // the producer's bell is to be rung

	// the frame that is arriving
	head     [transport.MaxHead]byte
	header   transport.Header
	arriving bool
	dst      []byte // where its body goes; nil drops it
	got      int    // bytes of body that are in
}

// hasRecord reports whether there is a record to take.
func (c *consumer) hasRecord() bool { return c.ring.headerAt(c.consumed).Load() != 0 }

// spin looks for a record up to so many times.
func (c *consumer) spin(looks int) {
	for w := c.ring.headerAt(c.consumed); looks > 1 && w.Load() == 0; looks-- {
		cpu.Pause()
	}
}

// next hands over the next record, if there is one; whole reports that it
// completed a frame.
func (c *consumer) next(in transport.Sink) (n int, whole bool, err error) {
	w := recordHeader(c.ring.headerAt(c.consumed).Load())
	if w == 0 {
		return 0, false, nil
	}
	race.Acquire()
	switch w.kind() {
	case 0:
		return 0, false, protocolError("a record that begins with %#x", uint64(w))
	case kindWhole, kindFirst:
		return c.beginFrame(w, in)
	case kindMore:
		return c.continueFrame(w, in)
	case kindWritten:
		return c.completeWritten(w, in)
	case kindSkip:
		span := len(c.ring) - c.ring.pos(c.consumed)
		if w != makeHeader(kindSkip, 0, 0, 0) || span == len(c.ring) {
			return 0, false, protocolError("a skip of %d bytes that begins with %#x", span, uint64(w))
		}
		c.consume(span)
		return span, false, nil
	}
	return 0, false, protocolError("a record of kind %d", w.kind())
}

// record is the record that w begins, of n bytes, unless it cannot be.
func (c *consumer) record(w recordHeader, n int) ([]byte, error) {
	rest := c.ring[c.ring.pos(c.consumed):]
	if n > len(rest) || w.head() > transport.MaxHead {
		return nil, protocolError("a record of %d bytes with a head of %d, %d before the ring's end", n, w.head(), len(rest))
	}
	return rest[:n], nil
}

// beginFrame takes a record with which a frame begins.
func (c *consumer) beginFrame(w recordHeader, in transport.Sink) (int, bool, error) {
	n, from, at := w.bytes(), 8, wholeAt(w.head(), w.bytes())
	if w.kind() == kindFirst {
		from, at = 16, firstAt(w.head())
	}
	rec, err := c.record(w, roundUp(at+n, cacheLine))
	switch {
	case err != nil:
		return 0, false, err
	case c.arriving:
		return 0, false, protocolError("a frame begins when %d of another one's %d bytes are in", c.got, c.header.Size)
	}
	size := n
	if w.kind() == kindFirst {
		whole := binary.NativeEndian.Uint64(rec[8:])
		if whole > uint64(min(MaxBody, math.MaxInt)) || int(whole) < n || n == 0 {
			return 0, false, protocolError("%d bytes at first, of %d", n, whole)
		}
		size = int(whole)
	}
	if size > maxPendingBody && c.pending.Load() {
		return 0, false, failure(fault.Refused, "receive",
			fmt.Errorf("a body of %d bytes before the peer was admitted, of at most %d", size, maxPendingBody))
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
			fmt.Errorf("the Sink gave %d bytes of room for a body of %d", len(c.dst), size))
	}
	c.arriving = true
	whole := c.deliver(rec[at:at+n], len(rec), in)
	return len(rec), whole, nil
}

// continueFrame takes a chunk of the frame that is arriving.
func (c *consumer) continueFrame(w recordHeader, in transport.Sink) (int, bool, error) {
	n := w.bytes()
	rec, err := c.record(w, roundUp(cacheLine+n, cacheLine))
	switch {
	case err != nil:
		return 0, false, err
	case w != makeHeader(kindMore, 0, n, 0) || n == 0 || !c.arriving || n > c.header.Size-c.got:
		return 0, false, protocolError("a chunk of %d bytes that begins with %#x, when %d of %d are in",
			n, uint64(w), c.got, c.header.Size)
	}
	whole := c.deliver(rec[cacheLine:cacheLine+n], len(rec), in)
	return len(rec), whole, nil
}

// deliver copies a chunk out of the ring, gives back its record of n bytes, and
// tells the Sink; true when the frame is complete.
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

// consume counts n bytes as taken. The producer is told when they have become many;
// the rest when there is nothing to take, so that it costs no time that matters.
// What it is not told of is less than what keeps it from putting a record.
func (c *consumer) consume(n int) {
	c.consumed += uint64(n)
	if c.consumed-c.published >= uint64(len(c.ring)/returnFraction) {
		c.returnSpace()
	}
}

// returnSpace gives the producer the room of what was taken. The swap that Store is
// orders it before the look at the bell.
func (c *consumer) returnSpace() {
	c.published = c.consumed
	c.sharedConsumed.Store(c.consumed)
	if w := c.doorbell.wakeAt.Load(); w != 0 && c.consumed >= w && c.doorbell.wakeAt.CompareAndSwap(w, 0) {
		c.mustRing = true
	}
}

// protocolError is the error of a ring that holds what we would never put there.
func protocolError(format string, args ...any) error {
	return failure(fault.LinkLost, "receive", fmt.Errorf("nonsense in shared memory: "+format, args...))
}
