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

// pieceMost bounds how much is written into a peer's memory while that cannot be
// taken back.
const pieceMost = 128 << 10

// A foreign is what this end can write of its peer's memory: the arenas that the peer
// has shown it. They are unmapped with the Conn, or, when the peer has freed them,
// before others are mapped.
type foreign struct {
	words slots // the peer's exposures; shared

	mu     sync.Mutex // guards the rest, and is held while a piece is written
	arenas map[uint32][]byte
	note   [arenaNote]byte // what has come of a note
	got    int             // bytes of it
	fd     int             // that came with it; -1: none
	err    error           // what was wrong with a note: no more is read
}

// hear reads what the peer has sent over the socket: rings of the bell, and notes
// of arenas. open is false when the peer's end is closed, and after nonsense.
func (c *conn) hear() (rang, open bool, err error) {
	r := &c.far
	r.mu.Lock()
	defer r.mu.Unlock()
	var b [64]byte
	for r.err == nil {
		n, fd, errno := readSocket(c.fd, &b)
		if fd >= 0 {
			r.drop()
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
			r.note[r.got] = x
			if r.got++; r.got == arenaNote {
				if r.err = r.noted(c.guest.Load()); r.err != nil {
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
		for _, came := range rights(append([]byte(nil), oob[:msg.Controllen]...)) {
			if fd >= 0 {
				unix.Close(fd)
			}
			fd = came
		}
	}
	return int(got), fd, 0
}

// drop closes a descriptor that no note was for. r.mu is held.
func (r *foreign) drop() {
	if r.fd >= 0 {
		unix.Close(r.fd)
		r.fd = -1
	}
}

// noted maps the arena that a note tells of. r.mu is held.
func (r *foreign) noted(guest bool) error {
	defer r.drop()
	r.got = 0
	id := binary.NativeEndian.Uint32(r.note[4:])
	size := binary.NativeEndian.Uint64(r.note[8:])
	switch {
	case guest:
		return failure(fault.Refused, "receive", errors.New("memory was shown before the peer was admitted"))
	case r.note[0] == 1 && r.fd < 0: // the peer counts on it, and cannot be told in time
		err := notCome()
		if errors.Is(err, errNotPassed) { // by now there may be room again
			err = fmt.Errorf("%w, or there was no room for one: raise ulimit -n", err)
		}
		return failure(fault.Exhausted, "take the peer's memory", err)
	case r.note[0] != 1 || size < arenaHead || size > uint64(MaxBody) || r.arenas[id] != nil:
		return nonsense("a note of %x", r.note[:])
	}
	if err := checkShared(r.fd, int(size), true); err != nil {
		return nonsense("a note of an arena that is none: %v", err)
	}
	r.prune()
	if len(r.arenas) >= knownMost {
		return nonsense("more than %d arenas shown", knownMost)
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
func (r *foreign) prune() {
	for id, mem := range r.arenas {
		if string(mem[:len(arenaMagic)]) != arenaMagic {
			unix.Munmap(mem)
			delete(r.arenas, id)
		}
	}
}

// close unmaps all; nobody is inside the gate any more.
func (r *foreign) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, mem := range r.arenas {
		unix.Munmap(mem)
	}
	r.arenas = nil
	r.drop()
}

// put writes the next piece of b to where to says, at bytes from its beginning. ok
// is false when the peer does not show that any more, or never did. unknown asks to
// hear first: the arena's note may be in the socket.
func (r *foreign) put(to token, at int, b *body) (n int, ok, unknown bool) {
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
	word := &r.words[to.slot]
	if !word.CompareAndSwap(to.number<<1, to.number<<1|1) {
		return 0, false, false
	}
	n = min(b.left, pieceMost)
	from := int(to.at) + at
	b.read(mem[from : from+n])
	word.CompareAndSwap(to.number<<1|1, to.number<<1) // it fails when the memory was taken away from us
	return n, true, false
}

// write puts the next bytes of f, the queue's first frame; the caller is the
// writer. n and whole are as for outbox.write.
func (c *conn) write(f *transport.Frame) (n int, whole bool, err error) {
	if f.To == (transport.Token{}) {
		return c.out.write(f)
	}
	o := &c.out
	b := &o.passing
	to := tokenOf(f.To)
	if !o.begun {
		o.begun, o.length = true, b.left
	}
	if b.left > 0 {
		done := o.length - b.left
		n, ok, unknown := c.far.put(to, f.Offset+done, b)
		if unknown {
			rang, _, err := c.hear()
			if rang {
				c.wake()
			}
			if err != nil {
				return 0, false, err
			}
			n, ok, unknown = c.far.put(to, f.Offset+done, b)
		}
		switch {
		case unknown:
			return 0, false, nonsense("a frame into an arena %d that was never shown", to.arena)
		case ok:
			return n, false, nil
		}
		n = b.left // the receiver fails the Conn, by its own books, when it hears of it
		*b = body{}
		return n, false, nil
	}
	whole, err = o.out.told(to, f.Offset, o.length)
	return 0, whole, err
}

// told puts the record that says what was written where; false when there is no
// room now.
func (p *producer) told(to token, at, size int) (bool, error) {
	room, err := p.reserve(line)
	if room == 0 {
		return false, err
	}
	rec := p.ring[p.ring.pos(p.at):][:line]
	for i, v := range [...]uint64{uint64(to.slot), to.number, uint64(at), uint64(size)} {
		binary.NativeEndian.PutUint64(rec[8+8*i:], v)
	}
	p.publish(makeWord(kindTold, 0, 0, 0), line)
	return true, nil
}

// exposed takes the record of a frame that the peer has written into exposed memory.
func (c *consumer) exposed(w word, in transport.Sink) (int, bool, error) {
	rec, err := c.record(w, line)
	switch {
	case err != nil:
		return 0, false, err
	case w != makeWord(kindTold, 0, 0, 0) || c.open:
		return 0, false, nonsense("a record of exposed memory that begins with %#x", uint64(w))
	}
	var v [4]uint64
	for i := range v {
		v[i] = binary.NativeEndian.Uint64(rec[8+8*i:])
	}
	id, ok := c.shown.arrived(v[0], v[1], v[2], v[3])
	if !ok {
		return 0, false, failure(fault.Misuse, "receive",
			fmt.Errorf("a frame of %d bytes at %d into memory that is not exposed to it", int64(v[3]), int64(v[2])))
	}
	size := int(v[3])
	c.header = transport.Header{ID: id, Size: size}
	c.free(line)
	in.Arrived(c.header, size)
	return line, true, nil
}
