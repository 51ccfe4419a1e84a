package cpu

import (
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Yield gives the core to another process. runtime.Gosched would only give it to another goroutine
// of this process.
func Yield() { syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) }

// CurrentCore returns the core that the caller runs on, or -1 where the system does not report it.
func CurrentCore() int {
	var core uint32
	if _, _, errno := syscall.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&core)), 0, 0); errno != 0 {
		return -1
	}
	return int(core)
}

// AvoidCore moves the calling thread away from a core, if the thread's affinity allows another
// core. It restores the affinity, so that the scheduler may move the thread back later.
func AvoidCore(core int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all unix.CPUSet
	if unix.SchedGetaffinity(0, &all) != nil || all.Count() < 2 {
		return
	}
	others := all
	others.Clear(core)
	if unix.SchedSetaffinity(0, &others) == nil {
		unix.SchedSetaffinity(0, &all)
	}
}

// allowedThreads returns the hardware threads that this process may use, and the file system that
// describes them.
func allowedThreads() (ids []int, sys fs.FS) {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return nil, nil
	}
	for id := 0; len(ids) < set.Count(); id++ {
		if set.IsSet(id) {
			ids = append(ids, id)
		}
	}
	return ids, os.DirFS("/sys")
}

// WithThreads calls f on a thread that may use only the given hardware threads. Processes that f
// starts inherit this. WithThreads restores the thread that it is called on.
func WithThreads(ids []int, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, set unix.CPUSet
	for _, id := range ids {
		set.Set(id)
	}
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("sched_getaffinity: %w", err)
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("sched_setaffinity to processors %v: %w", ids, err)
	}
	defer unix.SchedSetaffinity(0, &before) // cannot fail: these threads were allowed before
	return f()
}
