package shm

import (
	"encoding/binary"
	"fmt"
	"math"
	"sync/atomic"
	"unsafe"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/race"
	"github.com/tutti-go/tutti/internal/spin"
	"github.com/tutti-go/tutti/transport"
)

// The kinds of records.
const (
	kindWhole = 1 + iota
	kindFirst
	kindMore
	kindSkip
	kindTold
)

const (
	line = 64 // bytes; what records begin at a multiple of

	// MaxBody is the most bytes of body that a frame may have: more than any
	// machine has memory, so that a length beyond it is nonsense.
	MaxBody = int64(1) << 44

	// guestBody is the most bytes of body before Admit.
	guestBody = 4 << 10

	wholeMost  = 8 << 10  // the longest body that goes into one record
	chunkMost  = 32 << 10 // the most bytes of body in a record
	chunkLeast = 4 << 10  // the fewest, unless they are the last

	// While only small frames pass, the ring is used up to here, so that a Conn
	// for small frames has little memory, and that is in the caches.
	shortLap  = 32 << 10
	shortMost = 2 << 10 // the longest record of a small frame
	// wipeAhead is how far ahead words are cleared for small records, besides the
	// room of one more record of the last one's size; wipeMost is the longest of them.
	wipeAhead = 16 * line
	wipeMost  = 5 << 10
	// tellEvery is the part of the ring after which the consumer gives room back.
	tellEvery = 16

	alignedBody = 1 << 10 // from so many bytes on, a body begins a line
)

// A word is how a record begins: all that there is to know about most of them.
type word uint64

func makeWord(kind int, head, n int, id uint32) word {
	return word(kind) | word(head)<<4 | word(n)<<12 | word(id)<<32
}

func (w word) kind() int  { return int(w & 0xF) }
func (w word) head() int  { return int(w >> 4 & 0xFF) }
func (w word) bytes() int { return int(w >> 12 & 0xFFFFF) }
func (w word) id() uint32 { return uint32(w >> 32) }

// round is n, up to the next multiple of a power of two.
func round(n, to int) int { return (n + to - 1) &^ (to - 1) }

// wholeAt is where the body begins in the record of a whole frame.
func wholeAt(head, n int) int {
	if n >= alignedBody {
		return round(8+head, line)
	}
	return round(8+head, 8)
}

// firstAt is where the body begins in the record of a first chunk.
func firstAt(head int) int { return round(16+head, line) }

// A ring is memory that one producer fills and one consumer empties, of a size
// that is a power of two. Places in it are given by how many bytes were put
// before them in all.
type ring []byte

// pos is where at lies in the ring.
func (r ring) pos(at uint64) int { return int(at) & (len(r) - 1) }

// word is the word at a place that is a multiple of the line.
func (r ring) word(at uint64) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&r[r.pos(at)]))
}

// A producer puts records into a ring. It belongs to one goroutine at a time.
type producer struct {
	ring  ring
	taken *atomic.Uint64 // how many bytes the consumer has taken; shared
	bell  *bell          // the consumer's; shared

	at    uint64 // bytes put
	seen  uint64 // taken as last read, and found possible
	clean uint64 // every line from at to here begins with 0, and at least one does
	long  bool   // a record that is not short was put since the ring's beginning
	due   bool   // the consumer's bell is to be rung
}

func newProducer(r ring, taken *atomic.Uint64, b *bell) producer {
	return producer{ring: r, taken: taken, bell: b, clean: uint64(len(r))}
}

// refresh reads how far the consumer is. It can neither go back nor be ahead of
// what was put.
func (p *producer) refresh() error {
	t := p.taken.Load()
	if t-p.seen > p.at-p.seen || t%line != 0 {
		return nonsense("%d bytes taken, of %d, after %d", t, p.at, p.seen)
	}
	p.seen = t
	return nil
}

// free is how many bytes can be put, as far as is known: one line is kept for
// the word behind the last record.
func (p *producer) free() int { return len(p.ring) - line - int(p.at-p.seen) }

// reserve finds room in one piece for a record of at least so many bytes, and
// returns how much there is; 0 when there is none now. least is no more than a
// quarter of the ring.
func (p *producer) reserve(least int) (int, error) {
	if p.free() < least {
		if err := p.refresh(); err != nil {
			return 0, err
		}
	}
	span := len(p.ring) - p.ring.pos(p.at)
	if span < least || !p.long && p.ring.pos(p.at) >= shortLap {
		if p.free() < span+least {
			if err := p.refresh(); err != nil {
				return 0, err
			}
		}
		if p.free() >= span+least {
			p.publish(makeWord(kindSkip, 0, 0, 0), span)
			p.long = false
			span = len(p.ring)
		}
	}
	if room := min(p.free(), span); room >= least {
		return room, nil
	}
	return 0, nil
}

// publish makes the record at the ring's end visible, which has n bytes and is
// complete but for its word. The swap that Store is orders it before the look at
// the bell: either we see that the consumer sleeps, or it sees the record.
func (p *producer) publish(w word, n int) {
	next := p.at + uint64(n)
	if next >= p.clean {
		p.wipe(next)
		p.clean = next + line
	}
	race.Leaves()
	p.ring.word(p.at).Store(uint64(w))
	p.at = next
	if p.bell.asleep.Load() != 0 && p.bell.asleep.Swap(0) != 0 {
		p.due = true
	}
	if n <= wipeMost && p.clean-p.at < uint64(wipeAhead/2+n) {
		p.wipeMore(uint64(wipeAhead + n))
	}
}

// wipe clears the word at a place that the consumer is done with, and does not
// look at before the record in front of it is published.
func (p *producer) wipe(at uint64) { *(*uint64)(unsafe.Pointer(p.ring.word(at))) = 0 }

// wipeMore clears several words ahead. The lines have to come from the consumer's
// cache; one by one, each small record would wait for the next one's. A record that
// is longer has all its lines here then when the next message is written, and that
// one does not wait for them.
func (p *producer) wipeMore(ahead uint64) {
	end := min(p.at+ahead, p.seen+uint64(len(p.ring)))
	for ; p.clean < end; p.clean += line {
		p.wipe(p.clean)
	}
}

// whole puts a frame of at most wholeMost bytes of body; false when there is no
// room now.
func (p *producer) whole(id uint32, head []byte, b *body) (bool, error) {
	at := wholeAt(len(head), b.left)
	n := round(at+b.left, line)
	room, err := p.reserve(n)
	if room == 0 {
		return false, err
	}
	pos, w := p.ring.pos(p.at), makeWord(kindWhole, len(head), b.left, id)
	rec := p.ring[pos : pos+n]
	copy(rec[8:], head)
	b.read(rec[at : at+b.left])
	p.long = p.long || n > shortMost
	p.publish(w, n)
	return true, nil
}

// chunk puts the next bytes of a longer body, preceded by the head if they are
// the first. It returns how many; 0 when there is no room now.
func (p *producer) chunk(id uint32, head []byte, first bool, b *body) (int, error) {
	at, kind := line, kindMore
	if first {
		at, kind = firstAt(len(head)), kindFirst
	}
	room, err := p.reserve(round(at+min(b.left, chunkLeast), line))
	if room == 0 {
		return 0, err
	}
	n := min(b.left, chunkMost, room-at)
	if n < b.left {
		n &^= line - 1
	}
	pos := p.ring.pos(p.at)
	rec := p.ring[pos : pos+round(at+n, line)]
	w := makeWord(kindMore, 0, n, 0)
	if first {
		w = makeWord(kind, len(head), n, id)
		binary.NativeEndian.PutUint64(rec[8:], uint64(b.left))
		copy(rec[16:], head)
	}
	b.read(rec[at : at+n])
	p.long = true
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
	ring  ring
	taken *atomic.Uint64 // how many bytes were taken; shared
	bell  *bell          // the producer's; shared
	guest *atomic.Bool   // the peer has proven nothing yet
	shown *exposures

	at   uint64 // bytes taken
	told uint64 // taken as last stored
	due  bool   // the producer's bell is to be rung

	// the frame that is arriving
	head   [transport.MaxHead]byte
	header transport.Header
	open   bool
	dst    []byte // where its body goes; nil drops it
	got    int    // bytes of body that are in
}

// waiting reports whether there is a record to take.
func (c *consumer) waiting() bool { return c.ring.word(c.at).Load() != 0 }

// await looks for a record up to so many times.
func (c *consumer) await(looks int) {
	for w := c.ring.word(c.at); looks > 1 && w.Load() == 0; looks-- {
		spin.Pause()
	}
}

// take hands over the next record, if there is one; whole reports that it
// completed a frame.
func (c *consumer) take(in transport.Sink) (n int, whole bool, err error) {
	w := word(c.ring.word(c.at).Load())
	if w == 0 {
		return 0, false, nil
	}
	race.Came()
	switch w.kind() {
	case 0:
		return 0, false, nonsense("a record that begins with %#x", uint64(w))
	case kindWhole, kindFirst:
		return c.begin(w, in)
	case kindMore:
		return c.more(w, in)
	case kindTold:
		return c.exposed(w, in)
	case kindSkip:
		span := len(c.ring) - c.ring.pos(c.at)
		if w != makeWord(kindSkip, 0, 0, 0) || span == len(c.ring) {
			return 0, false, nonsense("a skip of %d bytes that begins with %#x", span, uint64(w))
		}
		c.free(span)
		return span, false, nil
	}
	return 0, false, nonsense("a record of kind %d", w.kind())
}

// record is the record that w begins, of n bytes, unless it cannot be.
func (c *consumer) record(w word, n int) ([]byte, error) {
	rest := c.ring[c.ring.pos(c.at):]
	if n > len(rest) || w.head() > transport.MaxHead {
		return nil, nonsense("a record of %d bytes with a head of %d, %d before the ring's end", n, w.head(), len(rest))
	}
	return rest[:n], nil
}

// begin takes a record with which a frame begins.
func (c *consumer) begin(w word, in transport.Sink) (int, bool, error) {
	n, from, at := w.bytes(), 8, wholeAt(w.head(), w.bytes())
	if w.kind() == kindFirst {
		from, at = 16, firstAt(w.head())
	}
	rec, err := c.record(w, round(at+n, line))
	switch {
	case err != nil:
		return 0, false, err
	case c.open:
		return 0, false, nonsense("a frame begins when %d of another one's %d bytes are in", c.got, c.header.Size)
	}
	size := n
	if w.kind() == kindFirst {
		whole := binary.NativeEndian.Uint64(rec[8:])
		if whole > uint64(min(MaxBody, math.MaxInt)) || int(whole) < n || n == 0 {
			return 0, false, nonsense("%d bytes at first, of %d", n, whole)
		}
		size = int(whole)
	}
	if size > guestBody && c.guest.Load() {
		return 0, false, failure(fault.Refused, "receive",
			fmt.Errorf("a body of %d bytes before the peer was admitted, of at most %d", size, guestBody))
	}
	head := c.head[:copy(c.head[:], rec[from:from+w.head()])]
	c.header, c.got = transport.Header{Head: head, ID: w.id(), Size: size}, 0
	if t, ok := in.(transport.CopySink); ok && w.kind() == kindWhole {
		t.Copy(c.header, rec[at:at+n])
		c.free(len(rec))
		return len(rec), true, nil
	}
	c.dst = in.Buffer(c.header)
	if c.dst != nil && len(c.dst) < size {
		return 0, false, failure(fault.Misuse, "progress",
			fmt.Errorf("the Sink gave %d bytes of room for a body of %d", len(c.dst), size))
	}
	c.open = true
	whole := c.landed(rec[at:at+n], len(rec), in)
	return len(rec), whole, nil
}

// more takes a chunk of the frame that is arriving.
func (c *consumer) more(w word, in transport.Sink) (int, bool, error) {
	n := w.bytes()
	rec, err := c.record(w, round(line+n, line))
	switch {
	case err != nil:
		return 0, false, err
	case w != makeWord(kindMore, 0, n, 0) || n == 0 || !c.open || n > c.header.Size-c.got:
		return 0, false, nonsense("a chunk of %d bytes that begins with %#x, when %d of %d are in",
			n, uint64(w), c.got, c.header.Size)
	}
	whole := c.landed(rec[line:line+n], len(rec), in)
	return len(rec), whole, nil
}

// landed copies a chunk out of the ring, gives back its record of n bytes, and
// tells the Sink; true when the frame is complete.
func (c *consumer) landed(chunk []byte, n int, in transport.Sink) (whole bool) {
	if c.dst != nil {
		copy(c.dst[c.got:], chunk)
	}
	c.got += len(chunk)
	c.free(n)
	whole = c.got == c.header.Size
	if whole {
		c.open, c.dst = false, nil
	}
	in.Arrived(c.header, c.got)
	return whole
}

// free counts n bytes as taken. The producer is told when they have become many;
// the rest when there is nothing to take, so that it costs no time that matters.
// What it is not told of is less than what keeps it from putting a record.
func (c *consumer) free(n int) {
	c.at += uint64(n)
	if c.at-c.told >= uint64(len(c.ring)/tellEvery) {
		c.tell()
	}
}

// tell gives the producer the room of what was taken. The swap that Store is
// orders it before the look at the bell.
func (c *consumer) tell() {
	c.told = c.at
	c.taken.Store(c.at)
	if w := c.bell.wanted.Load(); w != 0 && c.at >= w && c.bell.wanted.CompareAndSwap(w, 0) {
		c.due = true
	}
}

// nonsense is the error of a ring that holds what we would never put there.
func nonsense(format string, args ...any) error {
	return failure(fault.LinkLost, "receive", fmt.Errorf("nonsense in shared memory: "+format, args...))
}
