package verbs

import "sync"

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
	arenas  []*lease // in the order of their addresses
	unused  lease    // of leases without users, a ring: next is the last used one
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
	mem        []byte // of an arena; nil: it is none
	arena      *lease // that its memory is a part of; nil: none
	parts      int    // of an arena, uses of parts by registrations of their own
	prev, next *lease // in unused; nil while in use
}

func newCache(d device, limit int, remote bool) *cache {
	c := &cache{device: d, remote: remote, limit: limit, entries: make(map[uintptr]*lease)}
	c.unused.prev, c.unused.next = &c.unused, &c.unused
	return c
}

// take registers b, or finds that it is. b is not empty.
func (c *cache) take(b []byte) (*lease, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	arena := c.arenaOf(b)
	if arena != nil {
		if l, err := c.use(arena); l != nil || err != nil {
			return l, err
		}
	}
	l, err := c.takeOne(b, arena)
	if err == nil && arena != nil {
		arena.parts++
	}
	return l, err
}

// takeOne is take of memory that needs a registration of its own. mu is held.
func (c *cache) takeOne(b []byte, arena *lease) (*lease, error) {
	start := startOf(b)
	l := c.entries[start]
	if l != nil && len(l.region.mem) >= len(b) && (l.users == 0 || !c.remote) {
		l.users++
		l.unlink()
		return l, nil
	}
	c.shrink(c.limit - len(b))
	r, err := c.registered(b)
	if err != nil {
		return nil, err
	}
	fresh := &lease{cache: c, region: r, start: start, users: 1, arena: arena}
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

// registered registers b. mu is held.
func (c *cache) registered(b []byte) (*region, error) {
	r, err := c.device.register(b, c.remote)
	if err != nil { // perhaps all that may be locked is cached
		c.shrink(0)
		if r, err = c.device.register(b, c.remote); err != nil {
			return nil, unregistered(len(b), err)
		}
	}
	return r, nil
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
	l.leave()
	if l.users > 0 || l.mem != nil {
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

// leave ends one use in the books. mu is held.
func (l *lease) leave() {
	l.users--
	if l.arena != nil {
		l.arena.parts--
	}
}

// drop ends the only use of a remote lease, and the registration: from its return on
// nothing is written there. A nil lease has nothing to end.
func (l *lease) drop() {
	if l == nil {
		return
	}
	c := l.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	l.leave()
	switch {
	case l.mem != nil:
		l.end()
		return
	case !l.stray:
		c.forget(l)
	}
	l.region.drop()
}

// close forgets everything; what is in use ends with its users. Memory from Alloc
// stays, and is not registered any more.
func (c *cache) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = 0
	c.shrink(0)
	for _, a := range c.arenas {
		a.end()
	}
}
