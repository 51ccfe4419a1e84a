package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// The bounds of a Store.
const (
	MaxKey   = 256      // bytes of a key
	MaxValue = 64 << 10 // bytes of a value
	MaxKeys  = 1024     // keys of a Memory
)

// A Store keeps values under keys. Each change of a value gives it a higher version. Version 0
// means that there is no value. Any number of goroutines may call the methods. An error is that of
// ctx, or says why the request is refused, or is ErrClosed.
type Store interface {
	// Get returns the present value. The caller must not change it.
	Get(ctx context.Context, key string) (Versioned, error)
	// CompareAndSwap replaces the value if it has the given version, and reports whether it did. Of
	// several callers with the same version, one succeeds.
	CompareAndSwap(ctx context.Context, key string, version uint64, value []byte) (bool, error)
	// Watch waits until the version differs from the given one, and returns the value. If the value
	// changes several times meanwhile, Watch may return only the last one.
	Watch(ctx context.Context, key string, version uint64) (Versioned, error)
}

// A Versioned is a value and its version.
type Versioned struct {
	Version uint64
	Value   []byte
}

// ErrClosed is the error of a Store whose other end is gone.
var ErrClosed = errors.New("the store is closed")

// check returns an error if a key or a value is too large.
func check(key string, value []byte) error {
	if len(key) > MaxKey || len(value) > MaxValue {
		return fmt.Errorf("store: got a key of %d and a value of %d bytes, want at most %d and %d", len(key), len(value), MaxKey, MaxValue)
	}
	return nil
}

// A Memory is a Store in the memory of this process. It holds at most MaxKeys values.
type Memory struct {
	mu      sync.Mutex // guards the fields below
	entries map[string]*watched
}

// A watched is a Versioned, and a channel that is closed when the Versioned changes.
type watched struct {
	Versioned
	changed chan struct{}
}

// NewMemory returns an empty Memory.
func NewMemory() *Memory { return &Memory{entries: make(map[string]*watched)} }

// Get implements Store.
func (m *Memory) Get(_ context.Context, key string) (Versioned, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := m.entries[key]; w != nil {
		return w.Versioned, nil
	}
	return Versioned{}, nil
}

// CompareAndSwap implements Store.
func (m *Memory) CompareAndSwap(_ context.Context, key string, version uint64, value []byte) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w, err := m.watched(key, value)
	if err != nil || w.Version != version {
		return false, err
	}
	w.Versioned = Versioned{version + 1, value}
	close(w.changed)
	w.changed = make(chan struct{})
	return true, nil
}

// watched returns the entry of a key. It makes the entry if there is none. m.mu is held.
func (m *Memory) watched(key string, value []byte) (*watched, error) {
	if err := check(key, value); err != nil {
		return nil, err
	}
	w := m.entries[key]
	if w == nil {
		if len(m.entries) >= MaxKeys {
			return nil, fmt.Errorf("store: keys: got %d, want at most %d", len(m.entries)+1, MaxKeys)
		}
		w = &watched{changed: make(chan struct{})}
		m.entries[key] = w
	}
	return w, nil
}

// Watch implements Store.
func (m *Memory) Watch(ctx context.Context, key string, version uint64) (Versioned, error) {
	for {
		m.mu.Lock()
		w, err := m.watched(key, nil)
		if err != nil || w.Version != version {
			defer m.mu.Unlock()
			if err != nil {
				return Versioned{}, err
			}
			return w.Versioned, nil
		}
		changed := w.changed
		m.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return Versioned{}, ctx.Err()
		}
	}
}

// own is the prefix of the keys of a rank's own part.
const own = "me/"

// A RankView is what one rank has of the launcher's Store. EpochKey is in Shared. CredentialsKey
// and ReadyKey are in Own, which belongs to this rank alone. The rank can read these keys, and
// change ReadyKey. All other keys are refused, so a rank cannot use up the room of Shared or Own.
type RankView struct{ Shared, Own Store }

// part returns the Store of a key.
func (v RankView) part(key string) (Store, error) {
	switch key {
	case EpochKey, AddressesKey:
		return v.Shared, nil
	case CredentialsKey, ReadyKey:
		return v.Own, nil
	}
	return nil, fmt.Errorf("store: key: got %.64q, want one of %q, %q, %q, %q", key, EpochKey, AddressesKey, CredentialsKey, ReadyKey)
}

// Get implements Store.
func (v RankView) Get(ctx context.Context, key string) (Versioned, error) {
	s, err := v.part(key)
	if err != nil {
		return Versioned{}, err
	}
	return s.Get(ctx, key)
}

// Watch implements Store.
func (v RankView) Watch(ctx context.Context, key string, version uint64) (Versioned, error) {
	s, err := v.part(key)
	if err != nil {
		return Versioned{}, err
	}
	return s.Watch(ctx, key, version)
}

// CompareAndSwap implements Store. It refuses all keys except ReadyKey.
func (v RankView) CompareAndSwap(ctx context.Context, key string, version uint64, value []byte) (bool, error) {
	if key != ReadyKey {
		return false, fmt.Errorf("store: key %.64q: got a change, want only reads, because only the launcher may change this key", key)
	}
	return v.Own.CompareAndSwap(ctx, key, version, value)
}
