package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// maxPiece bounds how much is written into a peer's memory while that cannot be
// taken back.
const maxPiece = 128 << 10

// A peerMemory is what this end can write of its peer's memory: the arenas that the peer
// has shown it. They are unmapped with the Conn, or, when the peer has freed them,
// before others are mapped.
type peerMemory struct {
	slots slotTable // the peer's exposures; shared

	mu      sync.Mutex // guards the rest, and is held while a piece is written
	arenas  map[uint32][]byte
	message [arenaMessage]byte // what has come of a note
	got     int                // bytes of it
	fd      int                // that came with it; -1: none
	err     error              // what was wrong with a note: no more is read
}

// drainSocket reads what the peer has sent over the socket: rings of the bell, and notes
// of arenas. open is false when the peer's end is closed, and after nonsense.
func (c *conn) drainSocket() (rang, open bool, err error) {
	r := &c.peerMemory
	r.mu.Lock()
	defer r.mu.Unlock()
	var b [64]byte
	for r.err == nil {
		n, fd, errno := readSocket(c.fd, &b)
		if fd >= 0 {
			r.closeFD()
			r.fd = fd
		}
		switch {
		case errno == syscall.EINTR:
			continue
		case errno != 0:
			return rang, errno == syscall.EAGAIN, nil
		case n == 0:
			return rang, false, nil
		}
		for _, x := range b[:n] {
			if r.got == 0 && x == 0 {
				rang = true
				continue
			}
			r.message[r.got] = x
			if r.got++; r.got == arenaMessage {
				if r.err = r.mapArena(c.pending.Load()); r.err != nil {
					return rang, false, r.err
				}
			}
		}
		if n < len(b) && fd < 0 { // a read ends behind a descriptor, though there may be more
			return rang, true, nil
		}
	}
	return false, false, r.err
}

// readSocket reads without waiting, and without allocating: most of what comes is
// rings. fd is a descriptor that came along; -1: none did. (0 is one like others, where
// standard input was closed.)
func readSocket(socket int, b *[64]byte) (n, fd int, errno syscall.Errno) {
	var oob [32]byte // room for one descriptor; the kernel drops others
	iov := unix.Iovec{Base: &b[0]}
	iov.SetLen(len(b))
	msg := unix.Msghdr{Iov: &iov, Control: &oob[0]}
	msg.SetIovlen(1)
	msg.SetControllen(unix.CmsgSpace(4))
	got, _, errno := syscall.RawSyscall(syscall.SYS_RECVMSG, uintptr(socket), uintptr(unsafe.Pointer(&msg)),
		unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if errno != 0 {
		return 0, -1, errno
	}
	fd = -1
	if msg.Controllen > 0 {
		for _, came := range parseRights(append([]byte(nil), oob[:msg.Controllen]...)) {
			if fd >= 0 {
				unix.Close(fd)
			}
			fd = came
		}
	}
	return int(got), fd, 0
}

// closeFD closes a descriptor that no note was for. r.mu is held.
func (r *peerMemory) closeFD() {
	if r.fd >= 0 {
		unix.Close(r.fd)
		r.fd = -1
	}
}

// mapArena maps the arena that a note tells of. r.mu is held.
func (r *peerMemory) mapArena(guest bool) error {
	defer r.closeFD()
	r.got = 0
	id := binary.NativeEndian.Uint32(r.message[4:])
	size := binary.NativeEndian.Uint64(r.message[8:])
	switch {
	case guest:
		return failure(fault.Refused, "receive", errors.New("memory was shown before the peer was admitted"))
	case r.message[0] == 1 && r.fd < 0: // the peer counts on it, and cannot be told in time
		err := notCome()
		if errors.Is(err, errNotPassed) { // by now there may be room again
			err = fmt.Errorf("%w, or there was no room for one: raise ulimit -n", err)
		}
		return failure(fault.Exhausted, "take the peer's memory", err)
	case r.message[0] != 1 || size < arenaHead || size > uint64(MaxBody) || r.arenas[id] != nil:
		return protocolError("a note of %x", r.message[:])
	}
	if err := validateMemory(r.fd, int(size), true); err != nil {
		return protocolError("a note of an arena that is none: %v", err)
	}
	r.prune()
	if len(r.arenas) >= knownMost {
		return protocolError("more than %d arenas shown", knownMost)
	}
	mem, err := mapShared(r.fd, int(size))
	if err != nil {
		return failure(fault.Exhausted, "map the peer's memory", err)
	}
	if r.arenas == nil {
		r.arenas = make(map[uint32][]byte)
	}
	r.arenas[id] = mem
	return nil
}

// prune unmaps arenas that the peer has freed. r.mu is held.
func (r *peerMemory) prune() {
	for id, mem := range r.arenas {
		if string(mem[:len(arenaMagic)]) != arenaMagic {
			unix.Munmap(mem)
			delete(r.arenas, id)
		}
	}
}

// close unmaps all; nobody is inside the gate any more.
func (r *peerMemory) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, mem := range r.arenas {
		unix.Munmap(mem)
	}
	r.arenas = nil
	r.closeFD()
}

// write writes the next piece of b to where to says, at bytes from its beginning. ok
// is false when the peer does not show that any more, or never did. unknown asks to
// hear first: the arena's note may be in the socket.
func (r *peerMemory) write(to token, at int, b *body) (n int, ok, unknown bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	mem := r.arenas[to.arena]
	if mem == nil {
		return 0, false, true
	}
	size := uint64(len(mem))
	if to.slot >= slotCount || to.number == 0 || to.at < arenaHead || to.at > size || to.size > size-to.at ||
		at < 0 || uint64(at) > to.size || uint64(b.left) > to.size-uint64(at) {
		return 0, false, false
	}
	word := &r.slots[to.slot]
	if !word.CompareAndSwap(to.number<<1, to.number<<1|1) {
		return 0, false, false
	}
	n = min(b.left, maxPiece)
	from := int(to.at) + at
	b.read(mem[from : from+n])
	word.CompareAndSwap(to.number<<1|1, to.number<<1) // it fails when the memory was taken away from us
	return n, true, false
}

// writeNext puts the next bytes of f, the queue's first frame; the caller is the
// writer. n and whole are as for outbox.write.
func (c *conn) writeNext(f *transport.Frame) (n int, whole bool, err error) {
	if f.To == (transport.Token{}) {
		return c.outbox.write(f)
	}
	o := &c.outbox
	b := &o.remaining
	to := tokenOf(f.To)
	if !o.begun {
		o.begun, o.bodyLength = true, b.left
	}
	if b.left > 0 {
		done := o.bodyLength - b.left
		n, ok, unknown := c.peerMemory.write(to, f.Offset+done, b)
		if unknown {
			rang, _, err := c.drainSocket()
			if rang {
				c.scheduleReady()
			}
			if err != nil {
				return 0, false, err
			}
			n, ok, unknown = c.peerMemory.write(to, f.Offset+done, b)
		}
		switch {
		case unknown:
			return 0, false, protocolError("a frame into an arena %d that was never shown", to.arena)
		case ok:
			return n, false, nil
		}
		n = b.left // the receiver fails the Conn, by its own books, when it hears of it
		*b = body{}
		return n, false, nil
	}
	whole, err = o.producer.putWritten(to, f.Offset, o.bodyLength)
	return 0, whole, err
}

// putWritten puts the record that says what was written where; false when there is no
// room now.
func (p *producer) putWritten(to token, at, size int) (bool, error) {
	room, err := p.reserve(cacheLine)
	if room == 0 {
		return false, err
	}
	rec := p.ring[p.ring.pos(p.produced):][:cacheLine]
	for i, v := range [...]uint64{uint64(to.slot), to.number, uint64(at), uint64(size)} {
		binary.NativeEndian.PutUint64(rec[8+8*i:], v)
	}
	p.publish(makeHeader(kindWritten, 0, 0, 0), cacheLine)
	return true, nil
}

// completeWritten takes the record of a frame that the peer has written into exposed memory.
func (c *consumer) completeWritten(w recordHeader, in transport.Sink) (int, bool, error) {
	rec, err := c.record(w, cacheLine)
	switch {
	case err != nil:
		return 0, false, err
	case w != makeHeader(kindWritten, 0, 0, 0) || c.arriving:
		return 0, false, protocolError("a record of exposed memory that begins with %#x", uint64(w))
	}
	var v [4]uint64
	for i := range v {
		v[i] = binary.NativeEndian.Uint64(rec[8+8*i:])
	}
	id, ok := c.exposures.lookup(v[0], v[1], v[2], v[3])
	if !ok {
		return 0, false, failure(fault.Misuse, "receive",
			fmt.Errorf("a frame of %d bytes at %d into memory that is not exposed to it", int64(v[3]), int64(v[2])))
	}
	size := int(v[3])
	c.header = transport.Header{ID: id, Size: size}
	c.consume(cacheLine)
	in.Arrived(c.header, size)
	return cacheLine, true, nil
}
