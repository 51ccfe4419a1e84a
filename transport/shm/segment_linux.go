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
	version = 2

	// A ring as large as a core's second-level cache has large bodies pass three
	// times as fast as one of a quarter: lines leave the caches of both cores for
	// the one that they share, before they are used again. It is memory only once
	// it is used. A Transport with many Conns makes do with less for each.
	ringSize  = 1 << 20   // what this side asks for, each way
	ringSmall = 256 << 10 // the same, when it has manyConns
	manyConns = 32
	ringLeast = 64 << 10 // what is accepted
	ringMost  = 64 << 20

	ringsAt = 4096 // where the rings begin
)

// A nonce proves that two processes look at the same memory.
type nonce [16]byte

// newNonce is a number that nobody guesses.
func newNonce() (n nonce) {
	rand.Read(n[:]) // never fails since Go 1.24
	return n
}

// A bell is how one side says, in shared memory, what it sleeps for.
type bell struct {
	asleep atomic.Uint32
	closed atomic.Uint32
	wanted atomic.Uint64
}

// A segment is the memory of one Conn, mapped.
type segment struct {
	mem   []byte
	ring  int          // bytes in each ring
	users atomic.Int32 // of a Conn's: the Conn, and each of its exposures
	named bool         // it went by a file's name: no descriptor passed
}

// Where the sides' lines are.
const (
	nonceAt  = 16
	answerAt = 32
	deafAt   = 48
	bellsAt  = 128
	takenAt  = 384
	apart    = 128

	shownAt = 1024 // the slots of the side that dialled, then the other's
)

func segmentSize(ring int) int { return ringsAt + 2*ring }

// create lays a new segment out in memory that is all zeros.
func create(m *block, ring int, n nonce) (*segment, error) {
	mem, err := mapShared(m.fd, segmentSize(ring))
	if err != nil {
		return nil, err
	}
	copy(mem, magic)
	binary.NativeEndian.PutUint32(mem[8:], version)
	binary.NativeEndian.PutUint32(mem[12:], uint32(ring))
	copy(mem[nonceAt:], n[:])
	return &segment{mem: mem, ring: ring, named: m.how == byName}, nil
}

// checkRing holds the size of a peer's rings to what is allowed.
func checkRing(ring uint32) error {
	if ring < ringLeast || ring > ringMost || ring&(ring-1) != 0 {
		return fmt.Errorf("rings of %d bytes", ring)
	}
	return nil
}

// open maps a segment that a peer has made; its memory has the size for such rings.
func open(fd, ring int) (*segment, error) {
	mem, err := mapShared(fd, segmentSize(ring))
	if err != nil {
		return nil, err
	}
	s := &segment{mem: mem, ring: ring}
	if string(mem[:len(magic)]) != magic || binary.NativeEndian.Uint32(mem[8:]) != version ||
		binary.NativeEndian.Uint32(mem[12:]) != uint32(ring) {
		s.close()
		return nil, errors.New("the memory is not laid out as a Conn's")
	}
	return s, nil
}

func (s *segment) nonce(at int) nonce { return nonce(s.mem[at:]) }

// deaf is not 0 once the side that dialled has seen that no descriptor gets to it.
func (s *segment) deaf() *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&s.mem[deafAt])) }

func (s *segment) close() error { return unix.Munmap(s.mem) }

// leave is what each user does at last.
func (s *segment) leave() {
	if s.users.Add(-1) == 0 {
		s.close()
	}
}

// slots are the tables of what the end itself exposes, and of what its peer does.
func (s *segment) slots(dialled bool) (mine, theirs slots) {
	first, second := slotsAt(s.mem, shownAt), slotsAt(s.mem, shownAt+8*slotCount)
	if dialled {
		return first, second
	}
	return second, first
}

// sides are the two ends' views: what goes out and what comes in, and the bells
// of the end itself and of its peer. dialled tells which end it is.
func (s *segment) sides(dialled bool) (out producer, in consumer, mine, theirs *bell) {
	at := func(i int) unsafe.Pointer { return unsafe.Pointer(&s.mem[i]) }
	bells := [2]*bell{(*bell)(at(bellsAt)), (*bell)(at(bellsAt + apart))}
	taken := [2]*atomic.Uint64{(*atomic.Uint64)(at(takenAt)), (*atomic.Uint64)(at(takenAt + apart))}
	rings := [2]ring{s.mem[ringsAt : ringsAt+s.ring], s.mem[ringsAt+s.ring:]}
	me, peer := 0, 1
	if !dialled {
		me, peer = 1, 0
	}
	out = newProducer(rings[me], taken[me], bells[peer])
	in = consumer{ring: rings[peer], taken: taken[peer], bell: bells[peer]}
	return out, in, bells[me], bells[peer]
}

// mapShared maps all of a descriptor's memory.
func mapShared(fd, size int) ([]byte, error) {
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return mem, os.NewSyscallError("mmap", err)
}

// A sealed memory has a size for good: touching it cannot become fatal because
// another process cut it short.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// checkShared holds a peer's descriptor to what it is said to be.
func checkShared(fd, size int, mustSeal bool) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != int64(size) {
		return fmt.Errorf("the descriptor is of mode %#o with %d bytes, not memory of %d", st.Mode, st.Size, size)
	}
	if !mustSeal {
		return nil
	}
	got, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || got&unix.F_SEAL_SHRINK == 0 {
		return errors.New("the memory is not sealed against shrinking")
	}
	return nil
}

// sealedMemory is anonymous memory of that many zero bytes, which nobody can
// make smaller.
func sealedMemory(size int) (int, error) {
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
