package verbs

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"github.com/tutti-go/tutti/fault"
)

// An arena is memory that Alloc has returned. It is registered in one piece. So a part of an arena
// can be sent or exposed without another registration. registrationCache.arenas has a registration
// for each arena.
//
// In the local cache an arena stays registered until it is freed, or until Close of the Transport.
// In the remote cache one registration of the arena serves one use at a time. If a write of the
// peer may still be in flight when that use ends, the registration ends, too. The next use then
// registers the whole arena again. If several parts are exposed at the same time, the first part
// uses the arena's registration, and each other part gets a registration of its own from the cache.

// Alloc implements transport.Allocator. The memory is outside Go's heap. It is registered and
// pinned from the start, until the returned function frees it or Close of the Transport. It returns
// fault.Exhausted if the device, the limit on locked memory or the host has no room for the memory.
func (t *Transport) Alloc(size int) ([]byte, func() error, error) {
	op := fmt.Sprintf("allocate %d bytes", size)
	switch {
	case size < 0 || size > maxBody:
		return nil, nil, failure(fault.Misuse, op, fmt.Errorf("got a size of %d bytes, want 0 to %d", size, maxBody))
	case size == 0:
		return []byte{}, func() error { return nil }, nil
	case !t.acquireDevice():
		return nil, nil, failure(fault.Closed, op, nil)
	}
	defer t.releaseDevice()
	mem, unmap, err := t.device.Memory(size)
	if err != nil {
		return nil, nil, failure(fault.Exhausted, op, err)
	}
	// Both caches register the memory, each with its own access rights.
	sent, err := t.localCache.addArena(mem)
	if err != nil {
		return nil, nil, errors.Join(err, unmap())
	}
	shown, err := t.remoteCache.addArena(mem)
	if err != nil {
		return nil, nil, errors.Join(err, t.localCache.removeArena(sent), unmap())
	}
	var mu sync.Mutex
	freed := false
	return mem, func() error {
		mu.Lock()
		defer mu.Unlock()
		// removeArena may fail if the memory is in use. The program can then call free again later.
		if freed || shown.inUse() || sent.inUse() || shown.cache.removeArena(shown) != nil || sent.cache.removeArena(sent) != nil {
			return failure(fault.Misuse, "free memory", errInUse)
		}
		freed = true
		return unmap()
	}, nil
}

var errInUse = errors.New("a part of the memory is exposed to a peer or being sent, or the memory has been freed before; free memory once, after the calls that use it")

// addArena registers mem as an arena.
func (c *registrationCache) addArena(mem []byte) (*registration, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, err := c.register(mem)
	if err != nil {
		return nil, err
	}
	l := &registration{cache: c, region: r, mem: mem, start: startOf(mem)}
	i, _ := slices.BinarySearchFunc(c.arenas, l.start, byStart)
	c.arenas = slices.Insert(c.arenas, i, l)
	return l, nil
}

// startOf returns the address by which the cache sorts memory.
func startOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// byStart compares a registration with an address, for a binary search.
func byStart(l *registration, start uintptr) int {
	switch {
	case l.start < start:
		return -1
	case l.start > start:
		return 1
	}
	return 0
}

// arenaOf returns the arena that contains b, or nil. mu is held.
func (c *registrationCache) arenaOf(b []byte) *registration {
	start := startOf(b)
	i, found := slices.BinarySearchFunc(c.arenas, start, byStart)
	// The arena with the greatest address not above start may contain b.
	if !found {
		i--
	}
	if i < 0 || start-c.arenas[i].start >= uintptr(len(c.arenas[i].mem)) {
		return nil
	}
	return c.arenas[i]
}

// acquireArena returns the registration of the arena for one more use. In the remote cache it
// returns nil if a peer is using that registration. It registers the arena again if the last use
// has ended the registration. mu is held.
func (c *registrationCache) acquireArena(a *registration) (*registration, error) {
	if c.remote && a.refs > 0 {
		return nil, nil
	}
	if a.region == nil {
		r, err := c.register(a.mem)
		if err != nil {
			return nil, err
		}
		a.region = r
	}
	a.refs++
	return a, nil
}

// inUse reports whether a part of an arena is in use.
func (l *registration) inUse() bool {
	l.cache.mu.Lock()
	defer l.cache.mu.Unlock()
	return l.refs+l.partRefs > 0
}

// removeArena deregisters an arena and all parts of it that have registrations of their own. It
// returns an error if the arena is in use. Repeated calls have no effect.
func (c *registrationCache) removeArena(a *registration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a.refs+a.partRefs > 0 {
		return errInUse
	}
	if i, found := slices.BinarySearchFunc(c.arenas, a.start, byStart); found && c.arenas[i] == a {
		c.arenas = slices.Delete(c.arenas, i, i+1)
	}
	for _, l := range c.entries {
		if l.arena == a {
			c.evict(l)
		}
	}
	a.deregister()
	return nil
}

// deregister ends the registration of an arena if it has one. mu is held.
func (l *registration) deregister() {
	if l.region != nil {
		l.region.Deregister()
		l.region = nil
	}
}
