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

// Leaves is called before a message leaves.
func Leaves() { runtime.RaceReleaseMerge(unsafe.Pointer(&order)) }

// Came is called when a message has come.
func Came() { runtime.RaceAcquire(unsafe.Pointer(&order)) }

var (
	mu     sync.Mutex // guards mapped
	mapped = make(map[*byte]int)
)

// Mapped says that mem, which is not empty, may be mapped elsewhere, too, until Unmapped.
func Mapped(mem []byte) {
	mu.Lock()
	defer mu.Unlock()
	mapped[&mem[0]] = len(mem)
}

// Unmapped takes back what Mapped said of mem. It is called while it is still there.
func Unmapped(mem []byte) {
	mu.Lock()
	defer mu.Unlock()
	delete(mapped, &mem[0])
}

// LeavesBy is Leaves if the flag, which is about to be set, lies in memory that is
// Mapped; in other memory setting it is order enough.
func LeavesBy(flag *uint64) {
	if isMapped(flag) {
		Leaves()
	}
}

// CameBy is Came for a flag that was seen.
func CameBy(flag *uint64) {
	if isMapped(flag) {
		Came()
	}
}

func isMapped(flag *uint64) bool {
	mu.Lock()
	defer mu.Unlock()
	at := uintptr(unsafe.Pointer(flag))
	for from, n := range mapped {
		if at-uintptr(unsafe.Pointer(from)) < uintptr(n) {
			return true
		}
	}
	return false
}
