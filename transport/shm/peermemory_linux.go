package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// maxFragment is the maximum size of one fragment. The owner of the memory has to wait for the end
// of a fragment before it can release the memory.
const maxFragment = 128 << 10

// A peerMemory is this end's view of the peer's pool. This end writes bodies directly into the
// pool. It gets the pool when the peer first exposes a part of it. The lock mu serialises the
// goroutine that reads the socket and the goroutine that writes fragments.
type peerMemory struct {
	slots slotTable // the peer's exposures; shared with the peer

	mu  sync.Mutex // guards the rest, and is held while a fragment is written
	fd  int        // descriptor of the peer's pool; -1: not received yet
	mem []byte     // the mapped pool, as large as it was when its size was last read
	err error      // the error after which nothing more is read from the socket
}

// The messages on the socket are one byte each.
const (
	doorbellMessage = 0 // wake up
	poolMessage     = 1 // the descriptor beside this byte is the sender's pool
)

// socketRead is how many bytes one read of the socket takes.
const socketRead = 64

// drainSocket reads the messages that the peer has written to the socket: doorbells and the peer's
// pool. The result rang reports whether there was a doorbell. The result open is false if the
// peer's end is closed, and after an error.
//
// Two goroutines may call it: the watcher's goroutine when the socket is readable, and the writer
// when it needs the pool. p.mu serialises the two. Either goroutine may read the pool's descriptor
// and store it in p. If the writer has read a doorbell, it runs the callback in place of the
// watcher.
func (c *conn) drainSocket() (rang, open bool, err error) {
	p := &c.peerMemory
	p.mu.Lock()
	defer p.mu.Unlock()
	var b [socketRead]byte
	for p.err == nil {
		n, fd, errno := readSocket(c.fd, &b)
		switch {
		case errno == syscall.EINTR:
			continue
		case errno != 0:
			return rang, errno == syscall.EAGAIN, nil
		}
		for _, message := range b[:n] {
			switch message {
			case doorbellMessage:
				rang = true
			case poolMessage:
				if p.err == nil {
					p.err = p.receivePool(fd, c.pending.Load())
					fd = -1
				}
			default:
				p.err = protocolError("got message %d on the socket, want %d or %d", message, doorbellMessage, poolMessage)
			}
		}
		// The kernel ends a read at a descriptor.
		more := fd >= 0 || slices.Contains(b[:n], poolMessage)
		if fd >= 0 {
			unix.Close(fd) // no pool message came with it
		}
		if n == 0 || p.err != nil {
			return rang, false, p.err
		}
		if n < len(b) && !more {
			return rang, true, nil
		}
	}
	return false, false, p.err
}

// readSocket reads without waiting. It allocates nothing for a doorbell, which is the frequent
// message. The result fd is the descriptor in the message, or -1. Descriptor 0 is valid in a
// process whose standard input is closed.
func readSocket(socket int, b *[socketRead]byte) (n, fd int, errno syscall.Errno) {
	var oob [32]byte // room for one descriptor; the kernel discards others
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

// receivePool stores the pool from a pool message. The argument fd is the descriptor in the
// message, or -1 if the message had none. p.mu is held.
func (p *peerMemory) receivePool(fd int, pending bool) error {
	var err error
	switch {
	case fd < 0: // the peer may have sent tokens of the pool, so the Conn cannot continue
		return failure(fault.Exhausted, "receive the peer's memory",
			fmt.Errorf("%w; or this process had no room for a descriptor: raise ulimit -n", noDescriptor()))
	case pending:
		err = failure(fault.Refused, "receive", errors.New("memory was exposed before the peer was admitted"))
	case p.fd >= 0:
		err = protocolError("got a second pool, want one per connection")
	default:
		if _, err = sealedSize(fd); err != nil {
			err = protocolError("got a pool that cannot be mapped: %v", err)
		}
	}
	if err != nil {
		unix.Close(fd)
		return err
	}
	p.fd = fd
	return nil
}

// close unmaps the pool. No goroutine is inside the gate.
func (p *peerMemory) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mem != nil {
		unix.Munmap(p.mem)
		p.mem = nil
	}
	if p.fd >= 0 {
		unix.Close(p.fd)
		p.fd = -1
	}
}

// mapTo maps the pool at least up to the offset end. The result ok is false if the pool is smaller.
// It maps the whole pool at its present size, to map a growing pool less often. The pool's seal
// keeps it from shrinking, so mapped memory stays accessible. p.mu is held.
func (p *peerMemory) mapTo(end uint64) (ok bool, err error) {
	if end <= uint64(len(p.mem)) {
		return true, nil
	}
	size, err := sealedSize(p.fd)
	if err != nil || end > uint64(size) {
		return false, err
	}
	mem, err := mapShared(p.fd, 0, int(size))
	if err != nil {
		return false, failure(fault.Exhausted, "map the peer's memory", err)
	}
	if p.mem != nil {
		unix.Munmap(p.mem)
	}
	p.mem = mem
	return true, nil
}

// The reasons why a fragment was not written.
var (
	errNoPool     = errors.New("the descriptor of the peer's memory has not arrived")
	errNotExposed = errors.New("the memory is not exposed any more, or never was")
)

// write writes the next fragment of b into exposed memory. The argument at is the offset in the
// exposed memory. After errNoPool the caller drains the socket, which may hold the pool's
// descriptor, and tries again.
func (p *peerMemory) write(to token, at int, b *body) (n int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	end := to.offset + to.size
	switch {
	case p.fd < 0:
		return 0, errNoPool
	case to.slot >= slotCount || to.number == 0 || end < to.offset ||
		at < 0 || uint64(at) > to.size || uint64(b.left) > to.size-uint64(at):
		return 0, errNotExposed
	}
	ok, err := p.mapTo(end)
	if err != nil {
		return 0, err
	}
	slot := &p.slots[to.slot]
	if !ok || !slot.CompareAndSwap(to.number<<1, to.number<<1|1) {
		return 0, errNotExposed
	}
	n = min(b.left, maxFragment)
	from := int(to.offset) + at
	b.read(p.mem[from : from+n])
	// The swap fails if the owner has revoked the memory.
	slot.CompareAndSwap(to.number<<1|1, to.number<<1)
	return n, nil
}

// writeNext writes the next bytes of f, the queue's first frame: one record of the ring, or one
// fragment of exposed memory. The caller is the writer. It returns how many bytes of the body
// it has written, and whether the frame is complete.
//
// If the memory is no longer exposed, writeNext drops the body and still puts the record. The
// receiver fails the Conn when it reads that record, as transport.Exposer demands.
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
		at := f.Offset + o.bodyLength - b.left
		n, err := c.peerMemory.write(to, at, b)
		if err == errNoPool {
			if n, err = c.drainAndWrite(to, at, b); err == errNoPool {
				return 0, false, protocolError("got a token for memory whose descriptor has not arrived")
			}
		}
		if err != errNotExposed {
			return n, false, err
		}
		// The receiver does not find this exposure in its private table, and fails the Conn.
		n = b.left
		*b = body{}
		return n, false, nil
	}
	whole, err = o.producer.putWritten(to, f.Offset, o.bodyLength)
	return 0, whole, err
}

// drainAndWrite drains the socket before it writes a fragment.
func (c *conn) drainAndWrite(to token, at int, b *body) (int, error) {
	rang, _, err := c.drainSocket()
	if rang {
		c.scheduleReady()
	}
	if err != nil {
		return 0, err
	}
	return c.peerMemory.write(to, at, b)
}

// putWritten puts the record that announces a body in exposed memory. It returns false when the
// ring has no space now.
func (p *producer) putWritten(to token, at, size int) (bool, error) {
	room, err := p.reserve(recordAlign)
	if room == 0 {
		return false, err
	}
	rec := p.ring[p.ring.pos(p.produced):][:recordAlign]
	for i, v := range [...]uint64{uint64(to.slot), to.number, uint64(at), uint64(size)} {
		binary.NativeEndian.PutUint64(rec[8+8*i:], v)
	}
	p.publish(makeHeader(kindWritten, 0, 0, 0), recordAlign)
	return true, nil
}

// completeWritten handles the record of a body that the peer has written into exposed memory.
func (c *consumer) completeWritten(w recordHeader, in transport.Sink) (int, bool, error) {
	rec, err := c.record(w, recordAlign)
	switch {
	case err != nil:
		return 0, false, err
	case w != makeHeader(kindWritten, 0, 0, 0) || c.arriving:
		return 0, false, protocolError("got record header %#x for exposed memory, want %#x between frames", uint64(w), uint64(makeHeader(kindWritten, 0, 0, 0)))
	}
	var v [4]uint64
	for i := range v {
		v[i] = binary.NativeEndian.Uint64(rec[8+8*i:])
	}
	id, ok := c.exposures.lookup(v[0], v[1], v[2], v[3])
	if !ok {
		return 0, false, failure(fault.Misuse, "receive",
			fmt.Errorf("got a frame of %d bytes at offset %d, want memory that is exposed and large enough", int64(v[3]), int64(v[2])))
	}
	size := int(v[3])
	c.header = transport.Header{ID: id, Size: size}
	c.consume(recordAlign)
	in.Arrived(c.header, size)
	return recordAlign, true, nil
}
