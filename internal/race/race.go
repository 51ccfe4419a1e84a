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

// Which memory is mapped twice is the process's own affair, as the race detector is:
// who maps it and who sets flags in it are packages that know nothing of each other.
var (
	mu     sync.Mutex // guards mapped
	mapped = make(map[*byte]bool)
)

// Mapped says that mem, which is not empty, may be mapped elsewhere, too, until Unmapped:
// flags in it have to be told of with Leaves and Came. In other memory to set a flag and
// to see it is order enough.
func Mapped(mem []byte) {
	mu.Lock()
	defer mu.Unlock()
	mapped[&mem[0]] = true
}

// Unmapped takes back what Mapped said of mem. It is called while it is still there.
func Unmapped(mem []byte) {
	mu.Lock()
	defer mu.Unlock()
	delete(mapped, &mem[0])
}

// IsMapped reports whether mem is what Mapped was given, not a part of it. Asking orders what was done before in one
// goroutine and after it in another, so that it is for when memory is taken into use:
// asked at each flag, it would hide races.
func IsMapped(mem []byte) bool {
	mu.Lock()
	defer mu.Unlock()
	return len(mem) > 0 && mapped[&mem[0]]
}
