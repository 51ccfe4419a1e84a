package verbs

import (
	"sync"
	"unsafe"
)

// A cache keeps memory registered that is used again and again: registering costs
// about 2 ms for 10 MB, and more than sending on fast links. One cache has what is
// sent from, registered for local use only; another one what peers write to.
//
// Of the latter each use has its registration to itself, and gives it back only if
// nothing of the peer's can be on its way there any more; else it is dropped, which
// has the device refuse what comes late. A peer that keeps a key and writes later
// than it may is not held off: Options.Fresh is for those who do not trust the ranks
// of their own job.
//
// A registration pins its memory, and so the garbage collector neither frees nor
// reuses it while it is cached: an entry cannot go stale. The price is that up to
// limit bytes stay alive that the program has dropped. Memory that is not Go's, and
// is unmapped by its owner, must not be sent from or shown.
type cache struct {
	device device
	remote bool
	limit  int // bytes

	mu      sync.Mutex // guards the rest
	entries map[uintptr]*lease
	unused  lease // of leases without users, a ring: next is the last used one
	bytes   int
}

// A lease is the use of one registration. Uses of equal memory share it if it is not
// remote.
type lease struct {
	cache      *cache
	region     *region
	start      uintptr
	users      int
	stray      bool   // not among the entries: gone with its last user
	prev, next *lease // in unused; nil while in use
}

func newCache(d device, limit int, remote bool) *cache {
	c := &cache{device: d, remote: remote, limit: limit, entries: make(map[uintptr]*lease)}
	c.unused.prev, c.unused.next = &c.unused, &c.unused
	return c
}

// take registers b, or finds that it is. b is not empty.
func (c *cache) take(b []byte) (*lease, error) {
	start := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.entries[start]
	if l != nil && len(l.region.mem) >= len(b) && (l.users == 0 || !c.remote) {
		l.users++
		l.unlink()
		return l, nil
	}
	c.shrink(c.limit - len(b))
	r, err := c.device.register(b, c.remote)
	if err != nil { // perhaps all that may be locked is cached
		c.shrink(0)
		if r, err = c.device.register(b, c.remote); err != nil {
			return nil, unregistered(len(b), err)
		}
	}
	fresh := &lease{cache: c, region: r, start: start, users: 1}
	if l != nil && (l.users > 0 && c.remote) {
		fresh.stray = true
		return fresh, nil
	}
	if l != nil {
		c.forget(l)
	}
	c.entries[start] = fresh
	c.bytes += len(b)
	return fresh, nil
}

// forget takes an entry out; it ends with its last user. mu is held.
func (c *cache) forget(l *lease) {
	delete(c.entries, l.start)
	c.bytes -= len(l.region.mem)
	l.stray = true
	if l.unlink() {
		l.region.drop()
	}
}

// unlink takes l out of unused, and reports whether it was there. mu is held.
func (l *lease) unlink() bool {
	if l.next == nil {
		return false
	}
	l.prev.next, l.next.prev = l.next, l.prev
	l.prev, l.next = nil, nil
	return true
}

// shrink forgets what was not used for longest until at most limit bytes are held,
// or all that is left is in use. mu is held.
func (c *cache) shrink(limit int) {
	for c.bytes > limit && c.unused.prev != &c.unused {
		c.forget(c.unused.prev)
	}
}

// free ends one use. A nil lease has nothing to end.
func (l *lease) free() {
	if l == nil {
		return
	}
	c := l.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.users--; l.users > 0 {
		return
	}
	if l.stray {
		l.region.drop()
		return
	}
	l.prev, l.next = &c.unused, c.unused.next
	l.prev.next, l.next.prev = l, l
	c.shrink(c.limit)
}

// drop ends the only use of a remote lease, and the registration: from its return on
// nothing is written there. A nil lease has nothing to end.
func (l *lease) drop() {
	if l == nil {
		return
	}
	c := l.cache
	c.mu.Lock()
	if !l.stray {
		c.forget(l)
	}
	c.mu.Unlock()
	l.region.drop()
}

// close forgets everything; what is in use ends with its users.
func (c *cache) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = 0
	c.shrink(0)
}
