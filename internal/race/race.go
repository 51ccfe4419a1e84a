//go:build race

package race

import (
	"runtime"
	"sync"
	"unsafe"
)

// order is the one object through which all messages are ordered, as package syscall does it for
// Read and Write: which message a reader got is not known.
var order byte

// Release orders everything before it ahead of every later Acquire. It is called before a message
// is sent.
func Release() { runtime.RaceReleaseMerge(unsafe.Pointer(&order)) }

// Acquire orders everything after it behind every earlier Release. It is called when a message has
// arrived.
func Acquire() { runtime.RaceAcquire(unsafe.Pointer(&order)) }

// The memory that is mapped twice. This is state of the process, as the race detector is: the
// package that maps memory and the package that sets flags in it do not know each other.
var (
	mu     sync.Mutex // guards shared
	shared = make(map[*byte]bool)
)

// MarkShared says that mem, which is not empty, may be mapped elsewhere, too, until UnmarkShared.
// Flags in such memory need Release and Acquire; in other memory the detector sees the order by
// itself.
func MarkShared(mem []byte) {
	mu.Lock()
	defer mu.Unlock()
	shared[&mem[0]] = true
}

// UnmarkShared takes back MarkShared. It is called while mem is still mapped.
func UnmarkShared(mem []byte) {
	mu.Lock()
	defer mu.Unlock()
	delete(shared, &mem[0])
}

// IsShared reports whether mem starts where memory given to MarkShared starts. The call orders goroutines by
// its lock, so it is made once, when memory is taken into use: called at each flag, it would hide
// races.
func IsShared(mem []byte) bool {
	mu.Lock()
	defer mu.Unlock()
	return len(mem) > 0 && shared[&mem[0]]
}
