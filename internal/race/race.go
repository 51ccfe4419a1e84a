//go:build race

package race

import (
	"runtime"
	"sync"
	"unsafe"
)

// order is what all such messages go through, as package syscall has it for Read and
// Write: which of them a reader has got is not known.
var order byte

// Release is called before a message leaves.
func Release() { runtime.RaceReleaseMerge(unsafe.Pointer(&order)) }

// Acquire is called when a message has come.
func Acquire() { runtime.RaceAcquire(unsafe.Pointer(&order)) }

// Which memory is mapped twice is the process's own affair, as the race detector is:
// who maps it and who sets flags in it are packages that know nothing of each other.
var (
	mu     sync.Mutex // guards mapped
	shared = make(map[*byte]bool)
)

// MarkShared says that mem, which is not empty, may be mapped elsewhere, too, until Unmapped:
// flags in it have to be told of with Leaves and Came. In other memory to set a flag and
// to see it is order enough.
func MarkShared(mem []byte) {
	mu.Lock()
	defer mu.Unlock()
	shared[&mem[0]] = true
}

// UnmarkShared takes back what Mapped said of mem. It is called while it is still there.
func UnmarkShared(mem []byte) {
	mu.Lock()
	defer mu.Unlock()
	delete(shared, &mem[0])
}

// IsShared reports whether mem is what Mapped was given, not a part of it. Asking orders what was done before in one
// goroutine and after it in another, so that it is for when memory is taken into use:
// asked at each flag, it would hide races.
func IsShared(mem []byte) bool {
	mu.Lock()
	defer mu.Unlock()
	return len(mem) > 0 && shared[&mem[0]]
}
