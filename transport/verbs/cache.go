package verbs

import (
	"container/list"
	"sync"
	"unsafe"
)

// A cache keeps memory registered that is sent from again and again: registering
// costs about 2 ms for 10 MB, and more than sending on fast links. What it holds is
// registered for local use only, so that no peer can reach it; memory that a peer
// may write to is never cached.
//
// A registration pins its memory, and so the garbage collector neither frees nor
// reuses it while it is cached: an entry cannot go stale. The price is that up to
// limit bytes stay alive that the program has dropped. Memory that is not Go's, and
// is unmapped by its owner, must not be sent from.
type cache struct {
	device device
	limit  int // bytes

	mu      sync.Mutex // guards the rest
	entries map[uintptr]*lease
	unused  list.List // of *lease without users, the last used one in front
	bytes   int
}

// A lease is the use of one registration. Uses of equal memory share it.
type lease struct {
	cache  *cache
	region *region
	start  uintptr
	users  int
	place  *list.Element // in unused; nil while in use
	stray  bool          // not among the entries: gone with its last user
}

func newCache(d device, limit int) *cache {
	return &cache{device: d, limit: limit, entries: make(map[uintptr]*lease)}
}

// take registers b, or finds that it is. b is not empty.
func (c *cache) take(b []byte) (*lease, error) {
	start := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.entries[start]
	if l != nil && len(l.region.mem) >= len(b) {
		if l.users++; l.place != nil {
			c.unused.Remove(l.place)
			l.place = nil
		}
		return l, nil
	}
	c.shrink(c.limit - len(b))
	r, err := c.device.register(b, false)
	if err != nil { // perhaps all that may be locked is cached
		c.shrink(0)
		if r, err = c.device.register(b, false); err != nil {
			return nil, unregistered(len(b), err)
		}
	}
	fresh := &lease{cache: c, region: r, start: start, users: 1}
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
	if l.place != nil {
		c.unused.Remove(l.place)
		l.place = nil
		l.region.drop()
	}
}

// shrink forgets what was not used for longest until at most limit bytes are held,
// or all that is left is in use. mu is held.
func (c *cache) shrink(limit int) {
	for c.bytes > limit && c.unused.Len() > 0 {
		c.forget(c.unused.Back().Value.(*lease))
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
	l.place = c.unused.PushFront(l)
	c.shrink(c.limit)
}

// close forgets everything; what is in use ends with its users.
func (c *cache) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = 0
	c.shrink(0)
}
