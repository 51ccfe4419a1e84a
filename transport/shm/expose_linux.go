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

// A body goes into exposed memory by one copy, because the sender has mapped the receiver's pool
// and writes there itself. Each side of a Conn has a table of slots in the Conn's memory. A slot is
// one word for one exposure to the peer. The word acts as a lock between the two processes:
//
//	word         state     next word, and who writes it
//	0            free      g<<1 by the owner: Expose
//	g<<1         exposed   g<<1 | 1 by the peer, before it writes a fragment
//	                       0 by the owner: release
//	g<<1 | 1     writing   g<<1 by the peer, after the fragment
//	                       0 by the owner, when it has given up waiting for the peer
//
// The number g is the number of the exposure. It starts at 1 and is never used again on the Conn.
// Every transition is a compare-and-swap, except the owner's transitions from free and from
// writing. All transitions are sequentially consistent, like all of Go's atomic operations. So a
// fragment is in memory before the word leaves the state writing. An owner that releases its memory
// waits while the word is in the state writing. A fragment takes some ten microseconds. revoke
// handles a peer that was stopped or killed in the middle of a fragment.
//
// When this side first exposes a part of its pool to the peer, it sends the pool's descriptor over
// the socket. When a body is complete, its sender puts a record of kind written into the ring. The
// receiver checks that record against a private copy of the table, because the peer can write
// everywhere in the shared table. The only memory of this process that a faulty peer can damage is
// memory from Alloc.

// slotCount is the largest number of exposures that one side of a Conn has at a time. Exposures for
// many writes (transport.NoNotify) last long. They take at most preparedSlots of the slots, so that
// they do not keep receives of single messages from exposing their buffers.
const (
	slotCount     = 64
	preparedSlots = slotCount / 2
)

// A token is the decoded form of a transport.Token, which names exposed memory. The peer that gets
// it checks every field.
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

// tokenOf reads a token. Nothing in it is checked yet.
func tokenOf(b transport.Token) token {
	e := binary.NativeEndian
	return token{e.Uint32(b[0:]), e.Uint64(b[8:]), e.Uint64(b[16:]), e.Uint64(b[24:])}
}

// bytes encodes the token for the peer.
func (t token) bytes() (b transport.Token) {
	e := binary.NativeEndian
	e.PutUint32(b[0:], t.slot)
	e.PutUint64(b[8:], t.number)
	e.PutUint64(b[16:], t.offset)
	e.PutUint64(b[24:], t.size)
	return b
}

// A slotTable is one side's table of slots, in the Conn's memory.
type slotTable *[slotCount]atomic.Uint64

// slotTableAt returns the table at an offset of a Conn's memory, which is a multiple of 8.
func slotTableAt(mem []byte, at int) slotTable {
	return slotTable((*[slotCount]atomic.Uint64)(unsafe.Pointer(&mem[at])))
}

// An exposureTable holds the parts of the pool that one Conn has exposed to its peer. It reuses
// slots and their release functions, so an Expose for each receive allocates nothing.
type exposureTable struct {
	slots slotTable // shared with the peer

	mu       sync.Mutex // guards the rest
	last     uint64     // number of the last exposure
	free     []uint32   // slots; nil before the first Expose
	prepared int        // slots in use with the ID transport.NoNotify
	table    [slotCount]exposure
	sent     bool // the peer has been sent the pool's descriptor
}

// An exposure is the private copy of what one slot exposes.
type exposure struct {
	number  uint64 // 0 when the slot is free
	id      uint32 // the ID of frames that arrive in the memory
	buf     []byte
	of      *allocation // the pinned allocation that contains buf
	release func()      // made once, returned by each Expose of the slot
}

// The reasons why memory is not exposed. These errors are made only once, because package
// rendezvous tries to expose the buffer of every large receive.
var (
	errNotAllocated = failure(fault.Refused, "expose", errors.New("the memory is not from Alloc"))
	errNoSlot       = failure(fault.Exhausted, "expose", fmt.Errorf("exposures: got %d, want at most %d per Conn; release one first", slotCount+1, slotCount))
	errNoPrepared   = failure(fault.Exhausted, "expose", fmt.Errorf("exposures for many writes: got %d, want at most %d per Conn; release one first", preparedSlots+1, preparedSlots))
	errNotSent      = failure(fault.Exhausted, "expose", errors.New("the descriptor of the memory could not be sent"))
)

// Expose implements transport.Exposer for memory from this Transport's Alloc. It refuses other
// memory, at the cost of a binary search.
//
// It pins the allocation, so that free refuses until release. It sends the pool's descriptor if the
// peer does not have it, and fills the private copy of a slot. It publishes the slot last. From
// that store on the peer may write. The peer learns about the exposure from the token, which the
// layer above sends in a message.
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
	if err == nil && id == transport.NoNotify && x.prepared == preparedSlots {
		err = errNoPrepared
	}
	if err != nil {
		c.t.pool.unpin(a)
		return transport.Token{}, nil, err
	}
	slot := x.free[len(x.free)-1]
	x.free = x.free[:len(x.free)-1]
	x.last++
	if id == transport.NoNotify {
		x.prepared++
	}
	e := &x.table[slot]
	e.number, e.id, e.buf, e.of = x.last, id, buf, a
	// release needs a reference, because it uses the shared table also after the Conn has closed.
	c.seg.refs.Add(1)
	x.slots[slot].Store(e.number << 1)
	return token{slot, e.number, uint64(offset), uint64(len(buf))}.bytes(), e.release, nil
}

// initialize frees all slots and makes their release functions. x.mu is held.
func (x *exposureTable) initialize(c *conn) {
	x.free = make([]uint32, 0, slotCount)
	for i := range uint32(slotCount) {
		x.free = append(x.free, i)
		x.table[i].release = func() { c.revoke(i) }
	}
}

// sendPool sends the pool's descriptor to the peer, unless the peer has it already. c.exposures.mu
// is held, and the caller is inside the gate. The message is in the socket before the token is
// sent. When the peer gets a token of a pool that it does not know, it drains the socket and finds
// the descriptor.
func (c *conn) sendPool() error {
	x := &c.exposures
	if !x.sent && passDescriptor(c.fd, []byte{poolMessage}, c.t.pool.fd) != nil {
		return errNotSent
	}
	x.sent = true
	return nil
}

// detachAfter is how long a peer may take to write one fragment before revoke takes the memory away
// from the peer. Normally a fragment takes some ten microseconds.
const detachAfter = 250 * time.Millisecond

// revoke ends the exposure in a slot. When it has returned, nothing writes into the exposed memory
// any more. If the slot is in the state writing, there are three cases:
//
//   - the peer runs: revoke waits for the end of the fragment;
//   - the peer has died: revoke goes on, because the peer writes nothing any more;
//   - the peer was stopped for longer than detachAfter: it keeps the pages, and this process gets
//     other pages with the same contents.
func (c *conn) revoke(slot uint32) {
	x := &c.exposures
	x.mu.Lock()
	e := &x.table[slot]
	number, id, buf, a := e.number, e.id, e.buf, e.of
	e.number, e.buf, e.of = 0, nil, nil
	x.mu.Unlock()
	if number == 0 {
		return
	}
	word := &x.slots[slot]
	// Any other value comes from a faulty peer. It gives the peer no right to write, so the slot
	// counts as free.
	if !word.CompareAndSwap(number<<1, 0) && word.Load() == number<<1|1 {
		if !c.awaitWriter(word, number) {
			a.detach(buf) // it fails only if there is no memory for one page
		}
		word.Store(0)
	}
	x.mu.Lock()
	x.free = append(x.free, slot)
	if id == transport.NoNotify {
		x.prepared--
	}
	x.mu.Unlock()
	c.t.pool.unpin(a)
	c.seg.unref()
}

// awaitWriter waits until the peer has written its fragment, or has died. It returns false
// when the peer may still be writing after detachAfter.
//
// It yields instead of sleeping, because a fragment takes little time. It first yields to other
// goroutines, and then to other processes, since the writer may need this core.
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

// peerExited reports whether the peer's process has ended. The process may be a child of this
// process that has ended and has not been waited for.
func (c *conn) peerExited() bool {
	fd, err := unix.PidfdOpen(int(c.peerCred.Pid), 0)
	if err != nil {
		return err == unix.ESRCH
	}
	defer unix.Close(fd)
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
}

// lookup returns the ID of the exposure into which the peer claims to have written. The result ok
// is false unless the claimed range lies within that exposure.
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
