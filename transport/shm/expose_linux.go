package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// A body goes into exposed memory by one copy: the sender has the receiver's arena
// mapped, and writes there itself. What is exposed to the peer of a Conn stands in a
// table of slots in the Conn's memory, a word each:
//
//	0           nothing, or not any more
//	g<<1        exposed; g counts the exposures of this side's, from 1
//	g<<1 | 1    the same, and the peer is writing into it
//
// The peer writes a piece after it has changed the second into the third, and then
// changes it back. Who takes memory back changes the second into 0, and waits while
// it is the third: for no longer than one piece takes, unless the peer was stopped
// or killed in the middle of it; see withdraw.
//
// The peer gets the descriptor of this side's pool over the socket, when a part of it is
// first exposed to that peer. When all is written, a record in the ring says so, and is
// checked against the table's private copy. A faulty peer can damage no memory of this
// process but what Alloc gave out.
const slotCount = 64

// A token says where exposed memory is.
//
//	Token  bytes 0..3    the slot
//	       bytes 8..15   the exposure's number
//	       bytes 16..23  its offset in the pool
//	       bytes 24..31  its size
type token struct {
	slot         uint32
	number       uint64
	offset, size uint64
}

func tokenOf(b transport.Token) token {
	e := binary.NativeEndian
	return token{e.Uint32(b[0:]), e.Uint64(b[8:]), e.Uint64(b[16:]), e.Uint64(b[24:])}
}

func (t token) bytes() (b transport.Token) {
	e := binary.NativeEndian
	e.PutUint32(b[0:], t.slot)
	e.PutUint64(b[8:], t.number)
	e.PutUint64(b[16:], t.offset)
	e.PutUint64(b[24:], t.size)
	return b
}

// slotTable is a table of slots in a Conn's memory.
type slotTable *[slotCount]atomic.Uint64

func slotTableAt(mem []byte, at int) slotTable {
	return slotTable((*[slotCount]atomic.Uint64)(unsafe.Pointer(&mem[at])))
}

// exposureTable are the parts of the pool that one Conn has shown to its peer. Slots are
// used again, so that exposing for each receive allocates nothing.
type exposureTable struct {
	slots slotTable // shared

	mu    sync.Mutex // guards the rest
	last  uint64
	free  []uint32 // slots
	table [slotCount]exposure
	sent  bool // the peer has been sent the pool's descriptor
}

// An exposure is what one slot stands for.
type exposure struct {
	number  uint64 // 0 when the slot is free
	id      uint32
	buf     []byte
	of      *allocation
	release func() // made once, given out at each use
}

// Why memory is not exposed. They are made once: rendezvous tries for every large
// receive.
var (
	errNotAllocated = failure(fault.Refused, "expose", errors.New("the memory is not from Alloc"))
	errNoSlot       = failure(fault.Exhausted, "expose", fmt.Errorf("got one more exposure, want at most %d on a connection", slotCount))
	errNotSent      = failure(fault.Exhausted, "expose", errors.New("the descriptor of the memory could not be sent"))
)

// Expose implements transport.Exposer for parts of what this Transport's Alloc has
// given out; other memory it refuses.
func (c *conn) Expose(id uint32, buf []byte) (transport.Token, func(), error) {
	a, offset := c.t.pool.pin(buf)
	if a == nil {
		return transport.Token{}, nil, errNotAllocated
	}
	if !c.gate.Enter() {
		c.t.pool.unpin(a)
		return transport.Token{}, nil, errClosed()
	}
	defer c.exit()
	x := &c.exposures
	x.mu.Lock()
	defer x.mu.Unlock()
	err := c.sendPool()
	if err == nil && x.free == nil {
		x.initialize(c)
	}
	if err == nil && len(x.free) == 0 {
		err = errNoSlot
	}
	if err != nil {
		c.t.pool.unpin(a)
		return transport.Token{}, nil, err
	}
	slot := x.free[len(x.free)-1]
	x.free = x.free[:len(x.free)-1]
	x.last++
	e := &x.table[slot]
	e.number, e.id, e.buf, e.of = x.last, id, buf, a
	c.seg.refs.Add(1) // the table is looked at until release, also when the Conn has gone
	x.slots[slot].Store(e.number << 1)
	return token{slot, e.number, uint64(offset), uint64(len(buf))}.bytes(), e.release, nil
}

// initialize makes the slots.
func (x *exposureTable) initialize(c *conn) {
	x.free = make([]uint32, 0, slotCount)
	for i := range uint32(slotCount) {
		x.free = append(x.free, i)
		x.table[i].release = func() { c.revoke(i) }
	}
}

// sendPool sends the peer the pool's descriptor, unless it has it. c.exposures.mu is held,
// and the caller is inside the gate.
func (c *conn) sendPool() error {
	x := &c.exposures
	if !x.sent && passDescriptor(c.fd, []byte{poolMessage}, c.t.pool.fd) != nil {
		return errNotSent
	}
	x.sent = true
	return nil
}

// detachAfter is how long a peer may be in the middle of writing a piece, which
// takes some ten microseconds, before the memory is taken away from it.
const detachAfter = 250 * time.Millisecond

// revoke ends the exposure in a slot; when it has returned, nothing writes there.
// It waits for a piece that is being written: its writer is at work, or it has died
// and writes no more, or it was stopped, and then it keeps the pages, and this
// process gets others with what was in them.
func (c *conn) revoke(slot uint32) {
	x := &c.exposures
	x.mu.Lock()
	e := &x.table[slot]
	number, buf, a := e.number, e.buf, e.of
	e.number, e.buf, e.of = 0, nil, nil
	x.mu.Unlock()
	if number == 0 {
		return
	}
	word := &x.slots[slot]
	if !word.CompareAndSwap(number<<1, 0) && word.Load() == number<<1|1 {
		if !c.awaitWriter(word, number) {
			a.detach(buf) // where that fails, too, there is no memory for a page
		}
		word.Store(0)
	}
	x.mu.Lock()
	x.free = append(x.free, slot)
	x.mu.Unlock()
	c.t.pool.unpin(a)
	c.seg.unref()
}

// awaitWriter reports whether the peer is not writing any more, for certain.
func (c *conn) awaitWriter(word *atomic.Uint64, number uint64) bool {
	writing := func() bool { return word.Load() == number<<1|1 }
	for began, i := time.Now(), 0; writing(); i++ {
		runtime.Gosched()
		syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
		if i%64 < 63 {
			continue
		}
		if c.peerExited() {
			return true
		}
		if time.Since(began) > detachAfter {
			return !writing()
		}
	}
	return true
}

// peerExited reports whether the peer's process has ended. A child of ours that
// nobody has waited for has ended, too.
func (c *conn) peerExited() bool {
	fd, err := unix.PidfdOpen(int(c.peerCred.Pid), 0)
	if err != nil {
		return err == unix.ESRCH
	}
	defer unix.Close(fd)
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
}

// lookup is the ID of an exposure that the peer says to have written to, if it can
// have.
func (x *exposureTable) lookup(slot uint64, number, at, size uint64) (id uint32, ok bool) {
	if slot >= slotCount || number == 0 {
		return 0, false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	e := &x.table[slot]
	n := uint64(len(e.buf))
	if e.number != number || at > n || size > n-at || e.of.detached.Load() {
		return 0, false
	}
	return e.id, true
}

var (
	_ transport.Exposer = (*conn)(nil)
)
