package shm

import (
	"cmp"
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

// A pool is the memory from which Alloc allocates. It is one memfd, which grows and never shrinks.
// Each allocation is a range of whole pages of the memfd, and has a mapping of its own:
//
//	memfd     | allocation | hole | allocation | allocation | hole |
//	offset    0                                                    size
//
// The pages of an allocation are filled from the start, so touching them never fails. The pages of
// a hole are given back to the system. A peer to which a part is exposed gets the memfd's
// descriptor, once per Conn, and maps the whole memfd. expose_linux.go describes the rules that
// keep the peer from writing elsewhere. The memfd is sealed against shrinking, so that no process
// can make an access of another process fatal.
//
// A range of the memfd goes through these states; each transition takes mu for a moment:
//
//	hole       reserve ->  reserved   no pages; nobody else may use the range
//	reserved   fill, map   in use     pages, a mapping, and an entry in allocations
//	in use     free    ->  leaving    not in allocations; the pages are removed, the mapping ends
//	leaving    release ->  hole       joined with adjacent holes
//	in use     detach      detached   when freed, its range never becomes a hole again
//
// Filling may take seconds for gigabytes, and other goroutines expose memory meanwhile, so mu is
// held for bookkeeping only. The lock open is held for reading while fd is in use. So close cannot
// close fd meanwhile, after which another file could get the same number. A goroutine that needs
// both locks takes open first.
type pool struct {
	open   sync.RWMutex // guards closed
	closed bool

	mu          sync.Mutex    // guards the rest, and pins and mem of each allocation
	fd          int           // the memfd's descriptor, once made
	made        bool          // there is a memfd
	size        int           // of the memfd
	allocations []*allocation // by address
	holes       []extent      // by offset; no two are adjacent
}

// An extent is a range of the memfd, in whole pages.
type extent struct{ offset, size int }

// An allocation is the memory that one Alloc has returned.
type allocation struct {
	extent
	mem      []byte // the mapping; nil once the allocation is freed
	pins     int    // number of current exposures of parts of the allocation
	detached atomic.Bool
}

// Alloc implements transport.Allocator. The garbage collector does not manage the memory. The
// function free unmaps the memory, even if pointers to it exist. A later access kills the process.
// The function refuses while a part of the memory is exposed. It may be called after Close. Alloc
// returns fault.Refused if this process cannot share memory; the caller then uses ordinary memory.
// It returns fault.Exhausted if there is not enough memory.
func (t *Transport) Alloc(size int) ([]byte, func() error, error) {
	op := fmt.Sprintf("allocate %d bytes", size)
	switch {
	case size < 0 || int64(size) > MaxBody:
		return nil, nil, failure(fault.Misuse, op, fmt.Errorf("got a size of %d bytes, want 0 to %d", size, MaxBody))
	case t.unavailable != nil:
		return nil, nil, failure(fault.Refused, op, t.unavailable)
	case size == 0:
		return []byte{}, func() error { return nil }, nil
	}
	// Alloc fills the pages at once. So a lack of memory is an error here, and not a fatal signal
	// at a later access. headroom.Check comes first, because the kernel kills processes instead of
	// refusing to fill a memfd.
	if err := headroom.Check(int64(size)); err != nil {
		return nil, nil, failure(fault.Exhausted, op, err)
	}
	a, err := t.pool.alloc(roundUp(size, os.Getpagesize()))
	if err != nil {
		return nil, nil, failure(kindOf(err, fault.Exhausted), op, err)
	}
	free := func() error {
		if err := t.pool.free(a); err != nil {
			return failure(fault.Misuse, "free memory", err)
		}
		return nil
	}
	return a.mem[:size:size], free, nil
}

// kindOf returns the kind of err. If err has no kind, kindOf returns its second argument.
func kindOf(err error, otherwise fault.Kind) fault.Kind {
	var ours *fault.Error
	if errors.As(err, &ours) {
		return ours.Kind
	}
	return otherwise
}

// alloc makes an allocation of size bytes, which is a multiple of the page size.
func (p *pool) alloc(size int) (*allocation, error) {
	p.open.RLock()
	defer p.open.RUnlock()
	if p.closed {
		return nil, failure(fault.Closed, "allocate", nil)
	}
	e, err := p.reserve(size)
	if err != nil {
		return nil, err
	}
	a := &allocation{extent: e}
	if err = fillPages(p.fd, e); err == nil {
		a.mem, err = mapShared(p.fd, e.offset, e.size)
	}
	if err != nil {
		unix.Fallocate(p.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(e.offset), int64(e.size))
		p.release(e)
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	i, _ := slices.BinarySearchFunc(p.allocations, addressOf(a.mem), byAddress)
	p.allocations = slices.Insert(p.allocations, i, a)
	return a, nil
}

// reserve returns a range of the memfd: the beginning of the first hole that is large enough, or
// else a new range at the end, which makes the memfd grow. First fit keeps the memfd short, and
// programs allocate rarely, so a search through all holes is good enough. The first call makes the
// memfd.
func (p *pool) reserve(size int) (extent, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.holes {
		h := &p.holes[i]
		if h.size < size {
			continue
		}
		e := extent{h.offset, size}
		if h.offset, h.size = h.offset+size, h.size-size; h.size == 0 {
			p.holes = slices.Delete(p.holes, i, i+1)
		}
		return e, nil
	}
	if !p.made {
		fd, err := createMemfd(0, growingSeals)
		if err != nil {
			return extent{}, err
		}
		p.fd, p.made = fd, true
	}
	if err := unix.Ftruncate(p.fd, int64(p.size+size)); err != nil {
		return extent{}, os.NewSyscallError("ftruncate", err)
	}
	e := extent{p.size, size}
	p.size += size
	return e, nil
}

// release turns a range whose pages were removed into a hole, and joins it with the holes directly
// before and after it.
func (p *pool) release(e extent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i, _ := slices.BinarySearchFunc(p.holes, e, func(h, e extent) int { return cmp.Compare(h.offset, e.offset) })
	if i < len(p.holes) && e.offset+e.size == p.holes[i].offset {
		e.size += p.holes[i].size
		p.holes = slices.Delete(p.holes, i, i+1)
	}
	if i > 0 && p.holes[i-1].offset+p.holes[i-1].size == e.offset {
		p.holes[i-1].size += e.size
		return
	}
	p.holes = slices.Insert(p.holes, i, e)
}

// fillStep is how many bytes one system call fills with pages. A signal during the call makes the
// kernel undo the whole call, so the step is small.
const fillStep = 16 << 20

// fillPages makes the kernel allocate the pages of a range of a memfd.
func fillPages(fd int, e extent) error {
	for end := e.offset + e.size; e.offset < end; {
		err := unix.Fallocate(fd, 0, int64(e.offset), int64(min(fillStep, end-e.offset)))
		switch err {
		case nil:
			e.offset += fillStep
		case unix.EINTR:
		default:
			return os.NewSyscallError("fallocate", err)
		}
	}
	return nil
}

// addressOf returns the address at which a slice begins.
func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// byAddress compares an allocation with an address, for a binary search: it returns 0 when the
// address lies in the allocation.
func byAddress(a *allocation, at uintptr) int {
	switch begin := addressOf(a.mem); {
	case at < begin:
		return 1
	case at >= begin+uintptr(len(a.mem)):
		return -1
	}
	return 0
}

// pin finds the allocation that contains buf, and pins it, so that the allocation is not freed
// before unpin. It also returns the offset of buf in the memfd. If there is no such allocation, the
// result a is nil.
func (p *pool) pin(buf []byte) (a *allocation, offset int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i, ok := slices.BinarySearchFunc(p.allocations, addressOf(buf), byAddress)
	if !ok || len(buf) == 0 || p.allocations[i].detached.Load() {
		return nil, 0
	}
	a = p.allocations[i]
	a.pins++
	return a, a.offset + int(addressOf(buf)-addressOf(a.mem))
}

// unpin ends one pin of an allocation. The end of an exposure calls it.
func (p *pool) unpin(a *allocation) {
	p.mu.Lock()
	a.pins--
	p.mu.Unlock()
}

// free removes an allocation's pages at once. Peers that have them mapped read zeros from then on.
// The range of a detached allocation is not used again, because a stopped peer may still write
// there.
func (p *pool) free(a *allocation) error {
	p.mu.Lock()
	i := slices.Index(p.allocations, a)
	var err error
	switch {
	case i < 0:
		err = errors.New("the memory was freed before")
	case a.pins > 0:
		err = errors.New("a receive in progress uses a part of the memory; first wait for that receive, or cancel it")
	}
	if err != nil {
		p.mu.Unlock()
		return err
	}
	p.allocations = slices.Delete(p.allocations, i, i+1)
	mem := a.mem
	a.mem = nil
	p.mu.Unlock()
	// Unlike fallocate, madvise works even after the descriptor is closed.
	removed := unix.Madvise(mem, unix.MADV_REMOVE)
	if err := unix.Munmap(mem); err != nil {
		return os.NewSyscallError("munmap", err)
	}
	if removed == nil && !a.detached.Load() {
		p.release(a.extent)
	}
	return nil
}

// close closes the descriptor. Allocations stay until they are freed. They can no longer be
// exposed, because every Conn is closed already.
func (p *pool) close() {
	p.open.Lock()
	defer p.open.Unlock()
	if p.made && !p.closed {
		unix.Close(p.fd)
	}
	p.closed = true
}

// detach separates buf, a part of the allocation, from all peers: they keep the present pages, and
// this process gets a copy of them at the same address. revoke calls it for a peer that was stopped
// while it was writing, and may continue later. No goroutine uses buf during the call. If another
// goroutine writes to the rest of the first or last page of buf at the same time, that write may be
// lost.
//
// The copy is made in new pages first. Then one mremap replaces the shared pages by the new pages
// at the same address, so that the program's slices stay valid.
func (a *allocation) detach(buf []byte) error {
	a.detached.Store(true)
	page := uintptr(os.Getpagesize())
	from := (addressOf(buf) - addressOf(a.mem)) &^ (page - 1)
	to := min((addressOf(buf)-addressOf(a.mem)+uintptr(len(buf))+page-1)&^(page-1), uintptr(len(a.mem)))
	own, err := unix.MmapPtr(-1, 0, nil, to-from, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	copy(unsafe.Slice((*byte)(own), to-from), a.mem[from:to])
	_, _, errno := unix.Syscall6(unix.SYS_MREMAP, uintptr(own), to-from, to-from,
		unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, addressOf(a.mem[from:]), 0)
	if errno != 0 {
		unix.MunmapPtr(own, to-from)
		return os.NewSyscallError("mremap", errno)
	}
	return nil
}
