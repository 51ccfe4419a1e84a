package verbs

import (
	"sync"

	"github.com/tutti-go/tutti/transport/verbs/internal/rdma"
)

// A registrationCache keeps memory registered that is used again and again: registering costs
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
type registrationCache struct {
	device rdma.Device
	remote bool
	limit  int // bytes

	mu      sync.Mutex // guards the rest
	entries map[uintptr]*registration
	arenas  []*registration // in the order of their addresses
	unused  registration    // of leases without users, a ring: next is the last used one
	bytes   int
}

// A registration is the use of one registration. Uses of equal memory share it if it is not
// remote.
type registration struct {
	cache      *registrationCache
	region     *rdma.Region
	start      uintptr
	refs       int
	detached   bool          // not among the entries: gone with its last user
	mem        []byte        // of an arena; nil: it is none
	arena      *registration // that its memory is a part of; nil: none
	partRefs   int           // of an arena, uses of parts by registrations of their own
	prev, next *registration // in unused; nil while in use
}

func newCache(d rdma.Device, limit int, remote bool) *registrationCache {
	c := &registrationCache{device: d, remote: remote, limit: limit, entries: make(map[uintptr]*registration)}
	c.unused.prev, c.unused.next = &c.unused, &c.unused
	return c
}

// acquire registers b, or finds that it is. b is not empty.
func (c *registrationCache) acquire(b []byte) (*registration, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	arena := c.arenaOf(b)
	if arena != nil {
		if l, err := c.acquireArena(arena); l != nil || err != nil {
			return l, err
		}
	}
	l, err := c.acquireOwn(b, arena)
	if err == nil && arena != nil {
		arena.partRefs++
	}
	return l, err
}

// acquireOwn is take of memory that needs a registration of its own. mu is held.
func (c *registrationCache) acquireOwn(b []byte, arena *registration) (*registration, error) {
	start := startOf(b)
	l := c.entries[start]
	if l != nil && len(l.region.Mem) >= len(b) && (l.refs == 0 || !c.remote) {
		l.refs++
		l.unlink()
		return l, nil
	}
	c.shrink(c.limit - len(b))
	r, err := c.register(b)
	if err != nil {
		return nil, err
	}
	added := &registration{cache: c, region: r, start: start, refs: 1, arena: arena}
	if l != nil && (l.refs > 0 && c.remote) {
		added.detached = true
		return added, nil
	}
	if l != nil {
		c.evict(l)
	}
	c.entries[start] = added
	c.bytes += len(b)
	return added, nil
}

// register registers b. mu is held.
func (c *registrationCache) register(b []byte) (*rdma.Region, error) {
	r, err := c.device.Register(b, c.remote)
	if err != nil { // perhaps all that may be locked is cached
		c.shrink(0)
		if r, err = c.device.Register(b, c.remote); err != nil {
			return nil, registrationError(len(b), err)
		}
	}
	return r, nil
}

// evict takes an entry out; it ends with its last user. mu is held.
func (c *registrationCache) evict(l *registration) {
	delete(c.entries, l.start)
	c.bytes -= len(l.region.Mem)
	l.detached = true
	if l.unlink() {
		l.region.Deregister()
	}
}

// unlink takes l out of unused, and reports whether it was there. mu is held.
func (l *registration) unlink() bool {
	if l.next == nil {
		return false
	}
	l.prev.next, l.next.prev = l.next, l.prev
	l.prev, l.next = nil, nil
	return true
}

// shrink forgets what was not used for longest until at most limit bytes are held,
// or all that is left is in use. mu is held.
func (c *registrationCache) shrink(limit int) {
	for c.bytes > limit && c.unused.prev != &c.unused {
		c.evict(c.unused.prev)
	}
}

// release ends one use. A nil lease has nothing to end.
func (l *registration) release() {
	if l == nil {
		return
	}
	c := l.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	l.unref()
	if l.refs > 0 || l.mem != nil {
		return
	}
	if l.detached {
		l.region.Deregister()
		return
	}
	l.prev, l.next = &c.unused, c.unused.next
	l.prev.next, l.next.prev = l, l
	c.shrink(c.limit)
}

// unref ends one use in the books. mu is held.
func (l *registration) unref() {
	l.refs--
	if l.arena != nil {
		l.arena.partRefs--
	}
}

// invalidate ends the only use of a remote lease, and the registration: from its return on
// nothing is written there. A nil lease has nothing to end.
func (l *registration) invalidate() {
	if l == nil {
		return
	}
	c := l.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	l.unref()
	switch {
	case l.mem != nil:
		l.deregister()
		return
	case !l.detached:
		c.evict(l)
	}
	l.region.Deregister()
}

// close forgets everything; what is in use ends with its users. Memory from Alloc
// stays, and is not registered any more.
func (c *registrationCache) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = 0
	c.shrink(0)
	for _, a := range c.arenas {
		a.deregister()
	}
}
