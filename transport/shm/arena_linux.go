package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/headroom"
)

const (
	arenaMagic = "tuttishA"
	arenaHead  = 4096 // bytes before the memory that is given out
	arenaMost  = 1024 // arenas of a Transport: each holds a descriptor
)

// An arena is memory from Alloc: a memfd of its own, which peers map when a part of
// it is first shown to them. Its pages are there from the start, so that touching
// them is never fatal, and its size is sealed. Its first page tells peers that it
// still lives; when it is freed that reads as zeros, and they unmap it.
//
//	offset  bytes  field
//	0       8      "tuttishA"; zeros once it is freed
//	8       4      its number, unique in the Transport
//	4096    ...    what Alloc gave out
type arena struct {
	id       uint32
	mem      []byte // the mapping
	pins     int    // exposures of parts of it; guarded by arenas.mu
	fd       int    // -1 once the Transport has closed; guarded by arenas.mu
	detached atomic.Bool
}

// arenas are those of a Transport, in the order of their addresses.
type arenas struct {
	mu     sync.Mutex // guards the rest
	all    []*arena
	last   uint32
	closed bool
}

// Alloc implements transport.Allocator. The memory is the kernel's, and the garbage
// collector does not know it: it is there until free, whoever still refers to it,
// and touching it afterwards is fatal, as touching unmapped memory is. free refuses
// while a part of it is exposed. It may be freed after Close. Errors: fault.Refused
// where there is no such memory and ordinary one will do, fault.Exhausted where
// there is not so much.
func (t *Transport) Alloc(size int) ([]byte, func() error, error) {
	op := fmt.Sprintf("allocate %d bytes", size)
	switch {
	case size < 0 || int64(size) > MaxBody:
		return nil, nil, failure(fault.Misuse, op, errors.New("no memory has that size"))
	case t.unavailable != nil:
		return nil, nil, failure(fault.Refused, op, t.unavailable)
	case size == 0:
		return []byte{}, func() error { return nil }, nil
	}
	if err := headroom.Check(int64(size)); err != nil { // the kernel kills processes rather than refuse to fill a memfd
		return nil, nil, failure(fault.Exhausted, op, err)
	}
	a, err := t.arenas.add(t.ways.sealed, roundUp(arenaHead+size, os.Getpagesize()))
	if err != nil {
		return nil, nil, failure(kindOf(err, fault.Exhausted), op, err)
	}
	free := func() error {
		if err := t.arenas.free(a); err != nil {
			return failure(fault.Misuse, "free memory", err)
		}
		return nil
	}
	return a.mem[arenaHead : arenaHead+size : arenaHead+size], free, nil
}

// kindOf is err's kind, or another if it has none.
func kindOf(err error, otherwise fault.Kind) fault.Kind {
	var ours *fault.Error
	if errors.As(err, &ours) {
		return ours.Kind
	}
	return otherwise
}

// add makes an arena of that many bytes in all.
func (as *arenas) add(sealed func(size int) (int, error), size int) (*arena, error) {
	mem, fd, err := filled(sealed, size)
	if err != nil {
		return nil, err
	}
	a := &arena{mem: mem, fd: fd}
	as.mu.Lock()
	switch {
	case as.closed:
		err = failure(fault.Closed, "allocate", nil)
	case len(as.all) >= arenaMost:
		err = fmt.Errorf("%d pieces of memory are allocated already; free some, or allocate fewer and larger ones", arenaMost)
	}
	if err != nil {
		as.mu.Unlock()
		unix.Munmap(mem)
		unix.Close(fd)
		return nil, err
	}
	as.last++
	a.id = as.last
	i, _ := slices.BinarySearchFunc(as.all, address0(mem), byAddress)
	as.all = slices.Insert(as.all, i, a)
	as.mu.Unlock()
	copy(mem, arenaMagic)
	binary.NativeEndian.PutUint32(mem[8:], a.id)
	return a, nil
}

// filled is sealed memory whose pages are all there. Where none can be made a file
// is no substitute: peers may map arenas, and whoever can make a file shorter can
// kill those that have it mapped.
func filled(sealed func(size int) (int, error), size int) (mem []byte, fd int, err error) {
	if fd, err = sealed(size); err != nil {
		return nil, -1, failure(fault.Refused, "seal memory", err)
	}
	if err = allocate(fd, size); err == nil {
		mem, err = mapShared(fd, size)
	}
	if err != nil {
		unix.Close(fd)
		return nil, -1, err
	}
	return mem, fd, nil
}

// address0 is where a slice begins.
func address0(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

func byAddress(a *arena, at uintptr) int {
	switch begin := address0(a.mem); {
	case at < begin:
		return 1
	case at >= begin+uintptr(len(a.mem)):
		return -1
	}
	return 0
}

// pin finds the arena that buf is a part of, and where; nil if there is none. Until
// unpin it is not freed.
func (as *arenas) pin(buf []byte) (a *arena, at int) {
	as.mu.Lock()
	defer as.mu.Unlock()
	i, ok := slices.BinarySearchFunc(as.all, address0(buf), byAddress)
	if !ok || len(buf) == 0 || as.all[i].fd < 0 || as.all[i].detached.Load() {
		return nil, 0
	}
	a = as.all[i]
	a.pins++
	return a, int(address0(buf) - address0(a.mem))
}

func (as *arenas) unpin(a *arena) {
	as.mu.Lock()
	a.pins--
	as.mu.Unlock()
}

// free gives an arena's memory back at once, also where peers have it mapped: they
// see zeros then, and unmap it.
func (as *arenas) free(a *arena) error {
	as.mu.Lock()
	defer as.mu.Unlock()
	i := slices.Index(as.all, a)
	switch {
	case i < 0:
		return errors.New("it was freed before")
	case a.pins > 0:
		return errors.New("a receive under way has a part of it; wait for that, or cancel it, first")
	}
	as.all = slices.Delete(as.all, i, i+1)
	if a.fd >= 0 {
		unix.Fallocate(a.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, int64(len(a.mem)))
		unix.Close(a.fd)
	}
	mem := a.mem
	a.mem, a.fd = nil, -1
	return os.NewSyscallError("munmap", unix.Munmap(mem))
}

// close gives the descriptors back. The memory stays, and is shown to nobody more.
func (as *arenas) close() {
	as.mu.Lock()
	defer as.mu.Unlock()
	as.closed = true
	for _, a := range as.all {
		unix.Close(a.fd)
		a.fd = -1
	}
}

// detach takes the pages of buf, a part of the arena, away from all peers: they keep
// what they have mapped, and this process gets a copy in its place. It is for a peer
// that was stopped while it was writing and may go on one day. Nobody here uses buf
// meanwhile; of what lies beside it in its first and last page, a write at this very
// moment may be lost.
func (a *arena) detach(buf []byte) error {
	a.detached.Store(true)
	page := uintptr(os.Getpagesize())
	from := (address0(buf) - address0(a.mem)) &^ (page - 1)
	to := min((address0(buf)-address0(a.mem)+uintptr(len(buf))+page-1)&^(page-1), uintptr(len(a.mem)))
	own, err := unix.MmapPtr(-1, 0, nil, to-from, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	copy(unsafe.Slice((*byte)(own), to-from), a.mem[from:to])
	_, _, errno := unix.Syscall6(unix.SYS_MREMAP, uintptr(own), to-from, to-from,
		unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, address0(a.mem[from:]), 0)
	if errno != 0 {
		unix.MunmapPtr(own, to-from)
		return os.NewSyscallError("mremap", errno)
	}
	return nil
}
