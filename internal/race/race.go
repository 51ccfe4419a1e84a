//go:build race

package race

import (
	"runtime"
	"sync"
	"unsafe"
)

// order is the one object through which all messages are ordered, because the package does not know
// which message a reader got. Package syscall does the same for Read and Write.
var order byte

// Release orders all earlier accesses of the calling goroutine before every later Acquire. A sender
// calls it before it sends a message.
func Release() { runtime.RaceReleaseMerge(unsafe.Pointer(&order)) }

// Acquire orders all later accesses of the calling goroutine after every earlier Release. A
// receiver calls it when a message has arrived.
func Acquire() { runtime.RaceAcquire(unsafe.Pointer(&order)) }

// shared holds the start addresses of memory that is mapped twice. It is global, because the race
// detector is global, and because the package that maps memory does not know the package that sets
// flags in the memory.
var (
	mu     sync.Mutex // guards shared
	shared = make(map[*byte]bool)
)

// MarkShared records that mem may also be mapped at another address, until UnmarkShared. The slice
// must not be empty. Flags in such memory need Release and Acquire. For flags in other memory, the
// detector sees the order without help.
func MarkShared(mem []byte) {
	mu.Lock()
	defer mu.Unlock()
	shared[&mem[0]] = true
}

// UnmarkShared undoes MarkShared. It must be called while mem is still mapped.
func UnmarkShared(mem []byte) {
	mu.Lock()
	defer mu.Unlock()
	delete(shared, &mem[0])
}

// IsShared reports whether mem starts where memory given to MarkShared starts. The call orders
// goroutines by its lock, so callers make it once, when they start to use the memory. A call at
// each flag would hide races.
func IsShared(mem []byte) bool {
	mu.Lock()
	defer mu.Unlock()
	return len(mem) > 0 && shared[&mem[0]]
}
