package verbs

import (
	"sync"

	"github.com/tutti-go/tutti/transport/verbs/internal/rdma"
)

// A registrationCache keeps memory registered, for memory that is used repeatedly. Registering 10
// MB takes about 2 ms. On a fast link, sending 10 MB takes less time. A Transport has two caches.
// The local cache is for memory from which bodies are sent. This memory is registered only for
// local access. The remote cache is for memory into which peers write.
//
// In the remote cache no two uses share a registration. When a use ends, its registration stays
// cached only if no write of the peer can be in flight. Otherwise the registration is
// invalidated, and the device refuses a late write. A peer that breaks the protocol and keeps a
// key can still write to cached memory. Options.Fresh is for jobs that do not trust their own
// ranks.
//
// A registration pins its memory. The garbage collector neither frees nor reuses pinned memory, so
// an entry cannot become stale. The cost is that up to the cache's limit of bytes stay allocated
// although the program no longer uses them. Memory outside the Go heap that the program may unmap
// must not be sent or exposed.
type registrationCache struct {
	device rdma.Device
	remote bool
	limit  int // maximum bytes of all entries; entries in use may exceed it

	mu      sync.Mutex // guards the rest, and all registrations
	entries map[uintptr]*registration
	arenas  []*registration // sorted by address
	unused  registration    // list head: next is the most recently used entry without uses
	bytes   int             // total bytes of entries
}

// A registration is registered memory and the number of its uses. In the local cache, uses of
// the same memory share one registration.
//
//	state      refs  in entries  in unused  left by
//	used       >0    yes         no         release, invalidate
//	unused     0     yes         yes        acquire, evict (deregisters)
//	detached   >0    no          no         release, invalidate (deregister)
//
// A registration is detached if its memory had an entry in use already, or if it was evicted
// while in use. An arena (mem is not nil) is in none of these lists.
type registration struct {
	cache      *registrationCache
	region     *rdma.Region
	start      uintptr
	refs       int
	detached   bool          // not in entries; deregistered when its last use ends
	mem        []byte        // memory of the arena; nil: this is no arena
	arena      *registration // arena that contains the memory; nil: none
	partRefs   int           // of an arena: uses of parts that have their own registrations
	prev, next *registration // in unused; nil while in use
}

// newCache returns an empty cache for local or for remote access.
func newCache(d rdma.Device, limit int, remote bool) *registrationCache {
	c := &registrationCache{device: d, remote: remote, limit: limit, entries: make(map[uintptr]*registration)}
	c.unused.prev, c.unused.next = &c.unused, &c.unused
	return c
}

// acquire returns a registration of b for one use, from the cache if it has one. b is not
// empty.
func (c *registrationCache) acquire(b []byte) (*registration, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Memory within an arena uses the registration of the arena, unless a peer is using that
	// registration.
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

// acquireOwn returns a registration for memory that the registration of an arena does not cover.
// mu is held.
func (c *registrationCache) acquireOwn(b []byte, arena *registration) (*registration, error) {
	start := startOf(b)
	l := c.entries[start]
	// An entry covers b if it starts at the same address and is at least as long.
	if l != nil && len(l.region.Mem) >= len(b) && (l.refs == 0 || !c.remote) {
		l.refs++
		l.unlink()
		return l, nil
	}
	// Make room first, so that the cache does not exceed its limit because of the new entry.
	c.shrink(c.limit - len(b))
	r, err := c.register(b)
	if err != nil {
		return nil, err
	}
	added := &registration{cache: c, region: r, start: start, refs: 1, arena: arena}
	// A peer is using the entry for this memory, so this use needs a key of its own. Its
	// registration is not in entries, which has one entry per address.
	if l != nil && (l.refs > 0 && c.remote) {
		added.detached = true
		return added, nil
	}
	// The entry is too short. The longer registration replaces it.
	if l != nil {
		c.evict(l)
	}
	c.entries[start] = added
	c.bytes += len(b)
	return added, nil
}

// register registers b with the device. If the device refuses, the cached entries may have
// reached the limit on locked memory. register then evicts all unused entries and tries again.
// mu is held.
func (c *registrationCache) register(b []byte) (*rdma.Region, error) {
	r, err := c.device.Register(b, c.remote)
	if err != nil { // the cache may hold all memory that may be locked
		c.shrink(0)
		if r, err = c.device.Register(b, c.remote); err != nil {
			return nil, registrationError(len(b), err)
		}
	}
	return r, nil
}

// evict removes an entry. Its registration ends now if it is unused, and otherwise when its last
// use ends. mu is held.
func (c *registrationCache) evict(l *registration) {
	delete(c.entries, l.start)
	c.bytes -= len(l.region.Mem)
	l.detached = true
	if l.unlink() {
		l.region.Deregister()
	}
}

// unlink removes l from the list of unused entries. It reports whether l was in the list. mu is
// held.
func (l *registration) unlink() bool {
	if l.next == nil {
		return false
	}
	l.prev.next, l.next.prev = l.next, l.prev
	l.prev, l.next = nil, nil
	return true
}

// shrink evicts the least recently used entries until the cache has at most limit bytes, or
// only entries in use. mu is held.
func (c *registrationCache) shrink(limit int) {
	for c.bytes > limit && c.unused.prev != &c.unused {
		c.evict(c.unused.prev)
	}
}

// release ends one use of a registration. The entry stays cached for the next use. release does
// nothing if l is nil.
func (l *registration) release() {
	if l == nil {
		return
	}
	c := l.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	l.unref()
	// An arena stays registered until it is freed.
	if l.refs > 0 || l.mem != nil {
		return
	}
	if l.detached {
		l.region.Deregister()
		return
	}
	// The registration goes to the front, because it is the most recently used.
	l.prev, l.next = &c.unused, c.unused.next
	l.prev.next, l.next.prev = l, l
	c.shrink(c.limit)
}

// unref subtracts one use from l, and from the arena that contains its memory. mu is held.
func (l *registration) unref() {
	l.refs--
	if l.arena != nil {
		l.arena.partRefs--
	}
}

// invalidate ends the only use of a registration of the remote cache, and deregisters the memory.
// After it has returned, no peer can write into the memory. invalidate does nothing if l is nil.
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

// close evicts all unused entries. An entry in use is deregistered when its last use ends.
// Memory from Alloc stays valid, but is no longer registered.
func (c *registrationCache) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Registrations in use are not evicted here. With a limit of 0, their last release evicts them.
	c.limit = 0
	c.shrink(0)
	for _, a := range c.arenas {
		a.deregister()
	}
}
