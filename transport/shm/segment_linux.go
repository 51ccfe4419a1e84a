package shm

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	magic   = "tuttishm"
	version = 3

	// ringSize is about the size of a core's second-level cache. Large bodies then pass three times
	// as fast as with a quarter of this size, because the lines of the ring move from the caches of
	// both cores to their shared cache before they are used again. Only the used pages of a ring
	// need memory. A Transport with many Conns gives smaller rings to each new Conn.
	ringSize       = 1 << 20   // the size of each ring that this side asks for
	smallRing      = 256 << 10 // the same, if its Transport has at least smallRingConns Conns
	smallRingConns = 32
	minRing        = 64 << 10 // the smallest ring that is accepted
	maxRing        = 64 << 20

	ringsOffset = 4096 // where the rings begin
)

// A nonce proves that two processes see the same memory.
type nonce [16]byte

// newNonce returns a random nonce, which no other process can guess.
func newNonce() (n nonce) {
	rand.Read(n[:]) // never fails since Go 1.24
	return n
}

// A doorbell declares, in shared memory, the events for which one side sleeps. Its owner sets
// asleep and wakeAt before it sleeps. The peer clears the field on which it acts, and then writes
// to the socket. The owner sets the field closed once. See wakeup_linux.go for the order of the
// stores.
type doorbell struct {
	asleep atomic.Uint32
	closed atomic.Uint32
	wakeAt atomic.Uint64
}

// A segment is the mapped memory of one Conn; doc.go has its layout. It stays mapped as long as it
// has references. The Conn has one reference. Each of its exposures has one reference, because a
// release after the Conn's end still writes to the slot.
type segment struct {
	mem  []byte
	ring int          // bytes in each ring
	refs atomic.Int32 // the Conn, and its exposures; 0 before there is a Conn
}

// The offsets of the fields. Each field of the acceptor lies sideStride bytes after the same field
// of the dialer.
const (
	dialerNonceOffset   = 16
	acceptorNonceOffset = 32
	doorbellsOffset     = 128
	consumedOffset      = 384
	sideStride          = 128

	slotTablesOffset = 1024 // the slots of the dialer, then the slots of the acceptor
)

// segmentSize returns the size of a segment. Its argument is the size of each ring.
func segmentSize(ring int) int { return ringsOffset + 2*ring }

// createSegment maps new memory, all zeros, and writes the fixed fields of a segment.
func createSegment(fd, ring int, n nonce) (*segment, error) {
	mem, err := mapShared(fd, 0, segmentSize(ring))
	if err != nil {
		return nil, err
	}
	copy(mem, magic)
	binary.NativeEndian.PutUint32(mem[8:], version)
	binary.NativeEndian.PutUint32(mem[12:], uint32(ring))
	copy(mem[dialerNonceOffset:], n[:])
	return &segment{mem: mem, ring: ring}, nil
}

// validateRingSize checks the size that a peer proposes for each ring.
func validateRingSize(ring uint32) error {
	if ring < minRing || ring > maxRing || ring&(ring-1) != 0 {
		return fmt.Errorf("got rings of %d bytes, want a power of two from %d to %d", ring, minRing, maxRing)
	}
	return nil
}

// openSegment maps a segment that a peer has made. The caller has checked that the size of the
// memory matches the size of the rings.
func openSegment(fd, ring int) (*segment, error) {
	mem, err := mapShared(fd, 0, segmentSize(ring))
	if err != nil {
		return nil, err
	}
	s := &segment{mem: mem, ring: ring}
	if string(mem[:len(magic)]) != magic || binary.NativeEndian.Uint32(mem[8:]) != version ||
		binary.NativeEndian.Uint32(mem[12:]) != uint32(ring) {
		s.close()
		return nil, errors.New("got memory without the header of a connection: run the same release of tutti on all ranks")
	}
	return s, nil
}

// nonce reads one of the two nonces. The peer can change the nonce at any time, so only the
// handshake uses it.
func (s *segment) nonce(at int) nonce { return nonce(s.mem[at:]) }

// close unmaps the segment.
func (s *segment) close() error { return unix.Munmap(s.mem) }

// unref drops one user's reference. The last call unmaps the segment.
func (s *segment) unref() {
	if s.refs.Add(-1) == 0 {
		s.close()
	}
}

// slots returns the slot table of this end and the slot table of the peer.
func (s *segment) slots(dialled bool) (mine, theirs slotTable) {
	first, second := slotTableAt(s.mem, slotTablesOffset), slotTableAt(s.mem, slotTablesOffset+8*slotCount)
	if dialled {
		return first, second
	}
	return second, first
}

// views returns one end's view of the segment: the ring that it fills, the ring that it empties,
// its own doorbell, and its peer's doorbell. The argument selects the dialer's end.
func (s *segment) views(dialled bool) (out producer, in consumer, mine, theirs *doorbell) {
	at := func(i int) unsafe.Pointer { return unsafe.Pointer(&s.mem[i]) }
	doorbells := [2]*doorbell{(*doorbell)(at(doorbellsOffset)), (*doorbell)(at(doorbellsOffset + sideStride))}
	consumed := [2]*atomic.Uint64{(*atomic.Uint64)(at(consumedOffset)), (*atomic.Uint64)(at(consumedOffset + sideStride))}
	rings := [2]ring{s.mem[ringsOffset : ringsOffset+s.ring], s.mem[ringsOffset+s.ring:]}
	me, peer := 0, 1
	if !dialled {
		me, peer = 1, 0
	}
	out = newProducer(rings[me], consumed[me], doorbells[peer])
	in = consumer{ring: rings[peer], sharedConsumed: consumed[peer], doorbell: doorbells[peer]}
	return out, in, doorbells[me], doorbells[peer]
}

// mapShared maps a range of a descriptor's memory.
func mapShared(fd, offset, size int) ([]byte, error) {
	mem, err := unix.Mmap(fd, int64(offset), size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return mem, os.NewSyscallError("mmap", err)
}

// Shared memory is sealed against shrinking, so that no process can make an access of another
// process fatal. The memory of a Conn or of a Share cannot grow, either. The pool can grow.
const (
	fixedSeals   = growingSeals | unix.F_SEAL_GROW
	growingSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL
)

// validateMemory checks that a peer's descriptor is sealed memory of exactly the given size.
func validateMemory(fd, size int) error {
	got, err := sealedSize(fd)
	if err == nil && got != int64(size) {
		err = fmt.Errorf("got memory of %d bytes, want %d", got, size)
	}
	return err
}

// sealedSize returns the size of a peer's memory. It refuses a descriptor of another kind of file,
// and memory that is not sealed against shrinking. F_GET_SEALS fails on every other kind of file,
// because only memory has seals.
func sealedSize(fd int) (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, os.NewSyscallError("fstat", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > MaxBody {
		return 0, fmt.Errorf("got a descriptor of mode %#o with %d bytes, want memory", st.Mode, st.Size)
	}
	got, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || got&unix.F_SEAL_SHRINK == 0 {
		return 0, errors.New("got memory that is not sealed against shrinking")
	}
	return st.Size, nil
}

// createMemfd makes anonymous memory with the given size and seals, filled with zeros. The kernel
// allocates a page when it is first touched. The name of the memory, "tutti", appears only in
// /proc/PID/maps.
func createMemfd(size, seals int) (int, error) {
	fd, err := unix.MemfdCreate("tutti", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("tutti", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return -1, os.NewSyscallError("memfd_create", err)
	}
	if err = unix.Ftruncate(fd, int64(size)); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	if err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("memfd", err)
	}
	return fd, nil
}
